"""PNLC's faces: a chat model for everything that takes one, and a node for graphs of one's own.

The middleware (`amc_agents.middleware.CritiqueRefine`) hands agents the same chat model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from typing_extensions import TypedDict

from amc_agents.config import ConfigLike, configured
from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.log_odds import NoOdds
from amc_agents.critics.uses import for_lac, for_pnlc
from amc_agents.errors import ConfigurationError
from amc_agents.pnlc.decision import PnlcPrompts, PnlcSettings, Proposer
from amc_agents.pnlc.model import CritiqueRefineModel
from amc_agents.runtime.chosen_critic import CriticChoice
from amc_agents.runtime.deciding_model import deciding_node
from amc_agents.runtime.sampling_actor import unbound


class PnlcOptions(TypedDict, total=False):
    """Arguments that every face takes."""

    n_positive: int
    """Good outcomes imagined for each thought. Default: 2."""
    n_negative: int
    """Bad ones. Default: 2."""
    m: int
    """Thoughts made at most, the first one included. Default: 2."""
    refine: bool
    """Off: the best of `k` sampled thoughts, for policies that cannot read a critique. Default: on."""
    k: int
    """Thoughts sampled where `refine` is off. Default: 5."""
    critique: Literal["goals", "value", "self"]
    """What is said of a thought: likelihoods of goals, a likelihood of success, or what the model says itself,
    without a critic. Default: "goals"."""
    returns: tuple[float, float]
    """Returns of failure and success, for critics that value in reward units. Default: (0, 1)."""
    on_critic_error: Literal["raise", "uniform"]
    """Where proposer or critic fail or cannot be read, "uniform" lets the thought stand, and notes it. Default: the
    file's, else "raise"."""
    proposer: BaseChatModel | Proposer | None
    """Thinks of goals. Default: the policy itself."""
    prompts: PnlcPrompts
    """What language models are asked with: task, style of goals, examples, whole templates. Default: the library's."""
    seed: int | None
    """See `amc_agents.runtime.deciding_model.DecidingModel.seed`."""
    critics: Mapping[str, str | CriticLike] | None
    """What calls may choose among, by name, as in `amc`. Default: any critic that a call may name."""
    config: ConfigLike | None
    """The configuration file's path, or a `Config`. Default: the one that AMC_CONFIG names."""


def critique_refine_model(
    model: BaseChatModel | Runnable[Any, AIMessage], critic: Any = None, **options: Unpack[PnlcOptions]
) -> CritiqueRefineModel:
    """A chat model that thinks each answer of `model` over: goals, a critique, perhaps a better thought (PNLC).

    The answer is the final turn's message, with an id of its own; `response_metadata["pnlc"]` sums the decision up, and
    `usage_metadata` is left to the requests, which tracers see below this one. The whole record, thoughts and goals
    included, goes to LangGraph's custom stream as `{"type": "pnlc.decision", ...}` and into the trace.

    Args:
        model: the policy: a chat model, or one with arguments bound to it.
        critic: says how likely goals are reached: a string (`goal:...`) or an object. Left out, or named for one call:
            as in `amc`.
        **options: see `PnlcOptions`.

    Raises:
        ConfigurationError: a setting makes no sense, or the critic does not fit.
    """
    actor, bound = unbound(model)
    return face(actor, parts(critic, options), bound=bound)


def critique_refine_node(
    model: BaseChatModel | Runnable[Any, AIMessage],
    critic: Any = None,
    *,
    decisions: str | None = None,
    **options: Unpack[PnlcOptions],
) -> RunnableLambda[Any, Any]:
    """A node for a StateGraph with `messages`: it adds the message of the turn that PNLC settles on.

    Args:
        model: as `critique_refine_model`.
        critic: as there.
        decisions: a channel of the state that is given `[record]` of each decision. Default: none is.
        **options: see `PnlcOptions`.

    Raises:
        ConfigurationError: as `critique_refine_model`.
    """
    return deciding_node(critique_refine_model(model, critic, **options), decisions, "critique_refine")


def parts(critic: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a face makes its chat models of: settings checked and critic read, once.

    Raises:
        ConfigurationError: a setting makes no sense, or the critic does not fit.
    """
    given = dict(options)
    kept = {"proposer": given.pop("proposer", None), "seed": given.pop("seed", None)}
    prompts = given.pop("prompts", None) or PnlcPrompts()
    offered = given.pop("critics", None)
    config = configured(given.pop("config", None))
    if config.on_critic_error is not None:
        given.setdefault("on_critic_error", config.on_critic_error)
    settings = PnlcSettings(**given)
    critics = CriticChoice(
        critic if settings.needs_critic else "uniform",
        config,
        lambda found: _fitting(found, settings),
        offered,
    )
    return {"settings": settings, "critics": critics, "prompts": prompts, **kept}


def face(actor: BaseChatModel, made: Mapping[str, Any], **more: Any) -> CritiqueRefineModel:
    """The chat model of a face around one actor."""
    return CritiqueRefineModel(actor=actor, **made, **more)


def _fitting(critic: Any, settings: PnlcSettings) -> Any:
    """The critic as the settings ask it. Raises `ConfigurationError` where it does not fit."""
    if not settings.needs_critic:
        return critic
    if settings.critique == "goals":
        return for_pnlc(critic)
    odds = for_lac(critic, returns=settings.returns)
    if isinstance(odds, NoOdds):
        raise ConfigurationError(
            'critique="value" tells the model how likely success is, and `uniform` does not know: name a critic'
        )
    return odds
