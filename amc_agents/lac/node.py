"""LAC's faces: a chat model for everything that takes one, and a node for graphs of one's own.

The middleware (`amc_agents.middleware.ActorCritic`) hands agents the same chat model.
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
from amc_agents.critics.uses import for_lac
from amc_agents.errors import ConfigurationError
from amc_agents.lac.decision import Imagination, LacSettings
from amc_agents.lac.model import ActorCriticModel, Listed
from amc_agents.lac.text_scoring import TextScorer
from amc_agents.runtime.chosen_critic import CriticChoice
from amc_agents.runtime.deciding_model import deciding_node
from amc_agents.runtime.sampling_actor import require_temperature, unbound


class LacOptions(TypedDict, total=False):
    """Arguments that every face takes."""

    k: int
    """K, samples of the policy. Default: 5."""
    alpha: float
    """Weight of the critic; 0 is a vote, infinity the critic alone. Default: 1."""
    prior: Literal["frequency", "likelihood", "thoughts"]
    """How the policy's own opinion is measured. Default: "frequency"."""
    greedy: bool
    """The policy's turn at temperature 0 is a candidate too. Default: no."""
    sample: bool
    """Draw the action from the improved policy; otherwise its likeliest is taken. Default: no."""
    returns: tuple[float, float]
    """Returns of failure and success, for critics that value in reward units. Default: (0, 1)."""
    use_critic: bool
    """Off: a vote by the prior. Default: on."""
    depth: int
    """Steps imagined after each candidate, at most 4. Default: 0; the paper's method has 4 (`LacSettings.paper`)."""
    reflect: bool
    """Past and imagined steps get a reflection. Default: no; the paper's method has them."""
    on_critic_error: Literal["raise", "uniform"]
    """Where the critic fails, "uniform" lets the prior decide; where the world model fails to reflect, the
    decision goes without. Both are noted. Default: the file's, else "raise"."""
    world_model: BaseChatModel | Imagination | None
    """Imagines and reflects. Default: the policy itself."""
    scorer: TextScorer | None
    """Scores texts by the policy: needed by prior="thoughts", and by `actions`."""
    actions: Listed | None
    """All that can be done, or a function of the conversation that lists it: these are the candidates then, under the
    exact prior over them. prior="thoughts": under K sampled thoughts; "likelihood": without a thought."""
    seed: int | None
    """See `amc_agents.runtime.deciding_model.DecidingModel.seed`."""
    critics: Mapping[str, str | CriticLike] | None
    """What calls may choose among, by name, as in `amc`. Default: any critic that a call may name."""
    config: ConfigLike | None
    """The configuration file's path, or a `Config`. Default: the one that AMC_CONFIG names."""


def actor_critic_model(
    model: BaseChatModel | Runnable[Any, AIMessage], critic: Any = None, **options: Unpack[LacOptions]
) -> ActorCriticModel:
    """A chat model that samples K answers of `model` and gives the one that prior and critic choose (LAC, eq. 4 to 6).

    The answer is the chosen message as it was sampled, with an id of its own; `response_metadata["lac"]` sums the
    decision up, and `usage_metadata` is left to the K requests, which tracers see below this one. The whole record,
    candidates included, goes to LangGraph's custom stream as `{"type": "lac.decision", ...}` and into the trace.

    Args:
        model: the policy: a chat model, or one with arguments bound to it.
        critic: judges the candidates: a string or an object. Left out, or named for one call: as in `amc`.
        **options: see `LacOptions`.

    Raises:
        ConfigurationError: a setting makes no sense, the critic does not fit, or `model` cannot do what is asked.
    """
    actor, bound = unbound(model)
    return face(actor, parts(critic, options), bound=bound)


def actor_critic_node(
    model: BaseChatModel | Runnable[Any, AIMessage],
    critic: Any = None,
    *,
    decisions: str | None = None,
    **options: Unpack[LacOptions],
) -> RunnableLambda[Any, Any]:
    """A node for a StateGraph with `messages`: it adds the message that LAC chooses.

    Args:
        model: as `actor_critic_model`.
        critic: as there.
        decisions: a channel of the state that is given `[record]` of each decision. Default: none is.
        **options: see `LacOptions`.

    Raises:
        ConfigurationError: as `actor_critic_model`.
    """
    return deciding_node(actor_critic_model(model, critic, **options), decisions, "actor_critic")


def parts(critic: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a face makes its chat models of: settings checked and critic read, once.

    Raises:
        ConfigurationError: a setting makes no sense, or the critic does not fit.
    """
    given = dict(options)
    kept = {name: given.pop(name, None) for name in ("world_model", "scorer", "actions", "seed")}
    offered = given.pop("critics", None)
    config = configured(given.pop("config", None))
    if config.on_critic_error is not None:
        given.setdefault("on_critic_error", config.on_critic_error)
    settings = LacSettings(**given)
    if kept["actions"] is not None and (kept["scorer"] is None or settings.prior == "frequency"):
        raise ConfigurationError(
            'actions= are scored, each of them: it needs scorer=, and prior="thoughts" for a policy that thinks before '
            'it acts, else prior="likelihood"'
        )
    critics = CriticChoice(
        critic if settings.use_critic else "uniform",
        config,
        lambda found: for_lac(found, returns=settings.returns),  # type: ignore[arg-type, return-value]
        offered,
    )
    return {"settings": settings, "critics": critics, **kept}


def face(actor: BaseChatModel, made: Mapping[str, Any], **more: Any) -> ActorCriticModel:
    """The chat model of a face around one actor.

    Raises:
        ConfigurationError: the actor cannot do what is asked.
    """
    if made["settings"].greedy:
        require_temperature(actor)
    return ActorCriticModel(actor=actor, **made, **more)
