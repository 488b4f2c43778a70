"""LAC in an agent of LangChain's: each model call becomes one decision."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NotRequired, Unpack

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse, PrivateStateAttr
from langgraph.types import Command

from amc_agents.nodes.actor_critic import LacOptions, face, parts
from amc_agents.nodes.lac_actor import unbound
from amc_agents.nodes.lac_model import Record

_log = logging.getLogger(__name__)

MOST_KEPT = 100
"""Decisions that the state keeps, so that long conversations do not grow by them."""


def latest(kept: list[Record] | None, new: list[Record]) -> list[Record]:
    """The newest decisions: the reducer of the state's channel."""
    return [*(kept or []), *new][-MOST_KEPT:]


class ActorCriticState(AgentState[Any]):
    """What the middleware keeps."""

    lac_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: in no input and no output of the agent. LangGraph shows it, as every channel, in the stream of whole
    states and in `get_state`."""


class ActorCritic(AgentMiddleware[ActorCriticState, Any, Any]):
    """K candidates for each answer of the model; prior and critic choose (LAC).

        agent = create_agent(model, tools, middleware=[ActorCritic("verdict:http://127.0.0.1:8000?model=critic")])

    Put it last among the middleware that wraps model calls: what the others do to the request (tools, messages, the
    model itself) then holds for every candidate, and they are called once per decision. One that comes after it and
    replaces the model takes the decision out again; that is logged.

    Tools are bound as the model wants them, and a candidate's calls are its action. Structured output works by either
    strategy: the candidates are whole answers, and the chosen one is parsed.

    Args:
        critic: judges the candidates: a string or an object. Left out, or named for one call: as in `amc`.
        keep_decisions: keep the records of decisions in the agent's private state `lac_decisions`. They are in the
            custom stream and in the trace anyway.
        **options: see `amc_agents.nodes.actor_critic.LacOptions`.

    Raises:
        ConfigurationError: a setting makes no sense, or the critic does not fit.
    """

    state_schema = ActorCriticState

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[LacOptions]) -> None:
        super().__init__()
        self._parts, self._keep = parts(critic, options), keep_decisions

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Answer by a decision."""
        records: list[Record] = []
        return self._recorded(handler(self._deciding(request, records)), records)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Answer by a decision."""
        records: list[Record] = []
        return self._recorded(await handler(self._deciding(request, records)), records)

    def _deciding(self, request: ModelRequest[Any], records: list[Record]) -> ModelRequest[Any]:
        actor, bound = unbound(request.model)
        has_prompt = request.system_message is not None
        model = face(actor, self._parts, bound=bound, sink=records.append, system_is_task=not has_prompt)
        return request.override(model=model)

    def _recorded(
        self, response: ModelResponse[Any], records: list[Record]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        if not records:
            _log.warning("ActorCritic decided nothing: a middleware after it has answered, or replaced the model")
        if not records or not self._keep:
            return response
        return ExtendedModelResponse(response, Command(update={"lac_decisions": records}))
