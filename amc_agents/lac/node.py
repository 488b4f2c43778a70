"""LAC as a node for graphs."""

from __future__ import annotations

from typing import Any, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda

from amc_agents.lac.model import LacOptions, actor_critic_model
from amc_agents.runtime.deciding import deciding_node

__all__ = ["LacOptions", "actor_critic_model", "actor_critic_node"]


def actor_critic_node(
    model: BaseChatModel | Runnable[Any, AIMessage],
    critic: Any = None,
    *,
    decisions: str | None = None,
    **options: Unpack[LacOptions],
) -> RunnableLambda[Any, Any]:
    """Build a node for a StateGraph with `messages`: it adds the message that LAC chooses.

    Args:
        model: as in `actor_critic_model`.
        critic: as in `actor_critic_model`.
        decisions: channel of the state that receives `[record]` of each decision. Default: no channel.
        **options: see `LacOptions`.

    Raises:
        ConfigurationError: as `actor_critic_model`.
    """
    return deciding_node(actor_critic_model(model, critic, **options), decisions, "actor_critic")
