"""The common part of the middlewares of LAC and PNLC: a deciding chat model answers each model call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langgraph.types import Command
from typing_extensions import override

from amc_agents.logs import log, room_logger
from amc_agents.runtime.deciding_model import DecidingModel, Record
from amc_agents.runtime.sampling_actor import unbound

_log = room_logger(__name__)

MOST_KEPT = 100
"""Maximum number of decisions kept in the state, so that it does not grow with the conversation."""


def latest(kept: list[Record] | None, new: list[Record]) -> list[Record]:
    """Keep the newest decisions: the reducer of the state's channel."""
    return [*(kept or []), *new][-MOST_KEPT:]


class DecidingMiddleware(AgentMiddleware[Any, Any, Any]):
    """Answers each model call by a decision.

    Args:
        build: makes the deciding model from `actor`, `bound`, `sink` and `system_is_task`.
        keep_decisions: keep the records of decisions in the agent's private state.
    """

    channel: ClassVar[str]
    """Channel of the state for the records."""

    def __init__(self, build: Callable[..., DecidingModel], *, keep_decisions: bool) -> None:
        super().__init__()
        self._build = build
        self._keep = keep_decisions

    @override
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        records: list[Record] = []
        return self._recorded(handler(self._deciding(request, records)), records)

    @override
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        records: list[Record] = []
        return self._recorded(await handler(self._deciding(request, records)), records)

    def _deciding(self, request: ModelRequest[Any], records: list[Record]) -> ModelRequest[Any]:
        actor, bound = unbound(request.model)
        has_prompt = request.system_message is not None
        model = self._build(actor, bound=bound, sink=records.append, system_is_task=not has_prompt)
        return request.override(model=model)

    def _recorded(
        self, response: ModelResponse[Any], records: list[Record]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        if not records:
            log(
                _log,
                logging.WARNING,
                "decision.bypassed",
                "%(method)s decided nothing: a middleware after it answered, or replaced the model",
                method=type(self).__name__,
            )
        if not records or not self._keep:
            return response
        return ExtendedModelResponse(response, Command(update={self.channel: records}))
