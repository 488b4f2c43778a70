"""LAC in an agent of LangChain's: each model call becomes one decision."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models import BaseChatModel

from amc_agents.lac.model import ActorCriticModel
from amc_agents.lac.node import LacOptions, face, parts
from amc_agents.runtime.deciding_middleware import DecidingMiddleware, latest
from amc_agents.runtime.deciding_model import Record, Sink


class ActorCriticState(AgentState[Any]):
    """What the middleware keeps."""

    lac_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: in no input and no output of the agent. LangGraph shows it, as every channel, in the stream of whole
    states and in `get_state`."""


class ActorCritic(DecidingMiddleware):
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
        **options: see `amc_agents.lac.node.LacOptions`.

    Raises:
        ConfigurationError: a setting makes no sense, or the critic does not fit.
    """

    state_schema = ActorCriticState
    channel: ClassVar[str] = "lac_decisions"

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[LacOptions]) -> None:
        super().__init__(keep_decisions=keep_decisions)
        self._parts = parts(critic, options)

    def _face(self, actor: BaseChatModel, bound: dict[str, Any], sink: Sink, system_is_task: bool) -> ActorCriticModel:
        return face(actor, self._parts, bound=bound, sink=sink, system_is_task=system_is_task)
