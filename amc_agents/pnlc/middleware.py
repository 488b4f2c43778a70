"""PNLC in an agent of LangChain's: each model call is thought over before it becomes the agent's turn."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models import BaseChatModel

from amc_agents.pnlc.model import CritiqueRefineModel
from amc_agents.pnlc.node import PnlcOptions, face, parts
from amc_agents.runtime.deciding_middleware import DecidingMiddleware, latest
from amc_agents.runtime.deciding_model import Record, Sink


class CritiqueRefineState(AgentState[Any]):
    """What the middleware keeps."""

    pnlc_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: in no input and no output of the agent. LangGraph shows it, as every channel, in the stream of whole
    states and in `get_state`."""


class CritiqueRefine(DecidingMiddleware):
    """Each answer of the model is thought over: outcomes, how likely they are, perhaps a better thought (PNLC).

        agent = create_agent(model, tools, middleware=[CritiqueRefine("goal:my-goals")])

    No tool is called while it thinks: it suits agents whose tools cannot be undone.

    What is judged is the thought: the text before a tool call, `Thought: ...` of an agent that acts in text, else a
    reasoning model's reasoning, else the action itself.

    Put it last among the middleware that wraps model calls: what the others do to the request (tools, messages, the
    model itself) then holds for every draft, and they are called once per decision. One that comes after it and
    replaces the model takes the decision out again; that is logged.

    Args:
        critic: says how likely goals are reached: a string (`goal:...`) or an object. Left out, or named for one call:
            as in `amc`.
        keep_decisions: keep the records of decisions in the agent's private state `pnlc_decisions`. They are in the
            custom stream and in the trace anyway.
        **options: see `amc_agents.pnlc.node.PnlcOptions`.

    Raises:
        ConfigurationError: a setting makes no sense, or the critic does not fit.
    """

    state_schema = CritiqueRefineState
    channel: ClassVar[str] = "pnlc_decisions"

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[PnlcOptions]) -> None:
        super().__init__(keep_decisions=keep_decisions)
        self._parts = parts(critic, options)

    def _face(
        self, actor: BaseChatModel, bound: dict[str, Any], sink: Sink, system_is_task: bool
    ) -> CritiqueRefineModel:
        return face(actor, self._parts, bound=bound, sink=sink, system_is_task=system_is_task)
