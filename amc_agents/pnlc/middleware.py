"""PNLC as middleware for LangChain agents: each model call is reconsidered before it becomes the agent's turn."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import PrivateStateAttr

from amc_agents.pnlc.model import PnlcOptions, model_builder
from amc_agents.runtime.deciding import DecidingMiddleware, Record, latest


class CritiqueRefineState(AgentState[Any]):
    """The state of the middleware."""

    pnlc_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: not in the agent's input or output. As every channel, it is in the stream of whole states and in
    `get_state`."""


class CritiqueRefine(DecidingMiddleware):
    """Reconsiders each answer of the model: outcomes, how likely they are, perhaps a better thought (PNLC).

        agent = create_agent(model, tools, middleware=[CritiqueRefine("goal:my-goals")])

    No tool is called before the decision, so it suits agents whose tools cannot be undone.

    The thought is judged: the text before a tool call, `Thought: ...` of an agent that acts in text, else the reasoning
    of a reasoning model, else the action.

    Put it last among the middleware that wraps model calls: the changes that the others make to the request (tools,
    messages, the model itself) then apply to every draft, and they are called once per decision. A middleware after it
    that replaces the model also removes the decision; this is logged.

    Args:
        critic: predicts how likely goals are reached: a string (`goal:...`) or an object. If left out, or named for a
            call: as in `amc`.
        keep_decisions: keep the records of decisions in the agent's private state `pnlc_decisions`. The custom stream
            and the trace contain them in any case.
        **options: see `amc_agents.pnlc.model.PnlcOptions`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """

    state_schema = CritiqueRefineState
    channel: ClassVar[str] = "pnlc_decisions"

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[PnlcOptions]) -> None:
        super().__init__(model_builder(critic, options), keep_decisions=keep_decisions)
