"""PNLC as a node for graphs."""

from __future__ import annotations

from typing import Any, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda

from amc_agents.pnlc.model import PnlcOptions, critique_refine_model
from amc_agents.runtime.deciding import deciding_node

__all__ = ["PnlcOptions", "critique_refine_model", "critique_refine_node"]


def critique_refine_node(
    model: BaseChatModel | Runnable[Any, AIMessage],
    critic: Any = None,
    *,
    decisions: str | None = None,
    **options: Unpack[PnlcOptions],
) -> RunnableLambda[Any, Any]:
    """Build a node for a StateGraph with `messages`: it adds the message of the turn that PNLC settles on.

    Args:
        model: as in `critique_refine_model`.
        critic: as in `critique_refine_model`.
        decisions: channel of the state that receives `[record]` of each decision. Default: no channel.
        **options: see `PnlcOptions`.

    Raises:
        ConfigurationError: as `critique_refine_model`.
    """
    return deciding_node(critique_refine_model(model, critic, **options), decisions, "critique_refine")
