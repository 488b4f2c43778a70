"""Middleware for agents whose model is behind vllm-router: a task's requests go to one replica of the policy."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import HumanMessage
from langgraph.config import get_config

from amc_agents.critics.value.pooling import SESSION_HEADER
from amc_agents.runtime.calls import PARTICLE_THREAD


class SessionRouting(AgentMiddleware[Any, Any]):
    """Name the session, and the program, of each model request, for OpenAI-compatible chat models.

    The session is a hash of the conversation's first user message, which all particles of a run share: vllm-router's
    policy `consistent_hash` then sends them to one replica, whose prefix cache holds the task. The program is the
    particle, for the router's agent scheduling.

    Args:
        programs: send program ids too, in `vllm_xargs`. Servers without the router may refuse them.
    """

    def __init__(self, *, programs: bool = False) -> None:
        super().__init__()
        self._programs = programs

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Add the session to a request."""
        return handler(self._routed(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Add the session to a request."""
        return await handler(self._routed(request))

    def _routed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        settings = dict(request.model_settings)
        settings["extra_headers"] = {**settings.get("extra_headers", {}), SESSION_HEADER: _session(request)}
        if self._programs:
            settings["extra_body"] = _with_program(settings.get("extra_body", {}))
        return request.override(model_settings=settings)


def _session(request: ModelRequest[Any]) -> str:
    first = next((message.text for message in request.messages if isinstance(message, HumanMessage)), "")
    return hashlib.sha256(first.encode()).hexdigest()[:16]


def _with_program(body: dict[str, Any]) -> dict[str, Any]:
    """Add the thread of the running agent: in a population, each particle has a thread of its own."""
    configurable = get_config().get("configurable", {})
    thread = str(configurable.get(PARTICLE_THREAD) or configurable.get("thread_id", ""))
    arguments = body.get("vllm_xargs", {})
    return {**body, "vllm_xargs": {**arguments, "agentic_context": {"program_id": thread}}} if thread else body
