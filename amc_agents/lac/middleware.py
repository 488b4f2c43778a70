"""LAC as middleware for LangChain agents: each model call becomes a decision."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import PrivateStateAttr

from amc_agents.lac.model import LacOptions, model_builder
from amc_agents.runtime.deciding import DecidingMiddleware, Record, latest


class ActorCriticState(AgentState[Any]):
    """The state of the middleware."""

    lac_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: not in the agent's input or output. As every channel, it is in the stream of whole states and in
    `get_state`."""


class ActorCritic(DecidingMiddleware):
    """Samples K candidates for each answer of the model; prior and critic choose (LAC).

        agent = create_agent(model, tools, middleware=[ActorCritic("verdict:http://127.0.0.1:8000?model=critic")])

    Put it last among the middleware that wraps model calls: the changes that the others make to the request (tools,
    messages, the model itself) then apply to every candidate, and they are called once per decision. A middleware after
    it that replaces the model also removes the decision; this is logged.

    Tools are bound as the model requires, and a candidate's calls are its action. Both strategies of structured output
    work: the candidates are whole answers, and the chosen answer is parsed.

    Args:
        critic: judges the candidates: a string or an object. If left out, or named for a call: as in `amc`.
        keep_decisions: keep the records of decisions in the agent's private state `lac_decisions`. The custom stream
            and the trace contain them in any case.
        **options: see `amc_agents.lac.model.LacOptions`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """

    state_schema = ActorCriticState
    channel: ClassVar[str] = "lac_decisions"

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[LacOptions]) -> None:
        super().__init__(model_builder(critic, options), keep_decisions=keep_decisions)
