"""PNLC as a chat model: each answer is the outcome of a decision (`amc_agents.pnlc.decision.decide`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from pydantic import Field, SkipValidation

from amc_agents.config import configured
from amc_agents.critics.uses import NoOdds, for_lac, for_pnlc
from amc_agents.errors import ConfigurationError
from amc_agents.messages import trajectory_of
from amc_agents.pnlc.decision import PnlcDecision, PnlcPrompts, PnlcSettings, Proposer, decide
from amc_agents.pnlc.goals import ChatGoalProposer
from amc_agents.pnlc.thinker import ChatThinker, described
from amc_agents.pnlc.types import Basis
from amc_agents.runtime.calls import CriticChoice
from amc_agents.runtime.deciding import DecidingModel, DecidingOptions, DecisionRequest, DecisionResult, Record
from amc_agents.runtime.inner_calls import role_answers, unbound
from amc_agents.settings import OnCriticError
from amc_agents.usage import Usage, counting


class PnlcOptions(DecidingOptions, total=False):
    """Options of `critique_refine_model`, `critique_refine_node` and `CritiqueRefine`.

    The first eight are the fields of `PnlcSettings`, which documents them and has their defaults. `on_critic_error`
    comes from the configuration file if it is left out.
    """

    n_positive: int
    n_negative: int
    m: int
    refine: bool
    k: int
    critique: Basis
    returns: tuple[float, float]
    on_critic_error: OnCriticError
    proposer: BaseChatModel | Proposer | None
    """Proposes goals. Default: the policy."""
    prompts: PnlcPrompts
    """Prompts of the language models: task, style of goals, examples, templates. Default: the library's."""


def critique_refine_model(
    model: BaseChatModel | Runnable[Any, AIMessage], critic: Any = None, **options: Unpack[PnlcOptions]
) -> CritiqueRefineModel:
    """Build a chat model that reconsiders each answer of `model`: goals, critique, perhaps a better thought (PNLC).

    The answer is the final turn's message, with a new id. `response_metadata["pnlc"]` summarises the decision.
    `usage_metadata` is left to the requests, which tracers see below this model. The whole record, thoughts and goals
    included, goes to LangGraph's custom stream as `{"type": "pnlc.decision", ...}` and into the trace.

    Args:
        model: the policy: a chat model, or a chat model with bound arguments.
        critic: predicts how likely goals are reached: a string (`goal:...`) or an object. If left out, or named for a
            call: as in `amc`.
        **options: see `PnlcOptions`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """
    actor, bound = unbound(model)
    return model_builder(critic, options)(actor, bound=bound)


def model_builder(critic: Any, options: PnlcOptions) -> Callable[..., CritiqueRefineModel]:
    """Check the options and read the critic, once for any number of actors.

    Returns:
        A function of the actor and further fields of `CritiqueRefineModel`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """
    given: dict[str, Any] = dict(options)
    kept = {name: given.pop(name, None) for name in ("proposer", "seed", "budget")}
    prompts = given.pop("prompts", None) or PnlcPrompts()
    offered, config = given.pop("critics", None), configured(given.pop("config", None))
    kept["prices"] = config.price_list()
    if config.on_critic_error is not None:
        given.setdefault("on_critic_error", config.on_critic_error)
    settings = PnlcSettings(**given)

    def fit(critic: Any) -> Any:
        return _fitting(critic, settings)

    critics = CriticChoice(critic if settings.needs_critic else "uniform", config, fit, offered)

    def build(actor: BaseChatModel, **fields: Any) -> CritiqueRefineModel:
        return CritiqueRefineModel(actor=actor, settings=settings, critics=critics, prompts=prompts, **kept, **fields)

    return build


class CritiqueRefineModel(DecidingModel):
    """A chat model that reconsiders its answers with a critic's help. Made by `critique_refine_model`."""

    method: ClassVar[str] = "pnlc"

    settings: SkipValidation[PnlcSettings] = PnlcSettings()
    proposer: SkipValidation[BaseChatModel | Proposer | None] = Field(default=None, repr=False)
    """Proposes goals; None: the policy does."""
    prompts: SkipValidation[PnlcPrompts] = Field(default_factory=PnlcPrompts, repr=False)

    @property
    def _llm_type(self) -> str:
        return "critique-refine"

    @property
    def _traced_settings(self) -> dict[str, Any]:
        names = ("critique", "refine", "m" if self.settings.refine else "k", "n_positive", "n_negative")
        return {name: getattr(self.settings, name) for name in names}

    async def _decide(self, request: DecisionRequest) -> DecisionResult:
        prompts = self._prompts_for(request)
        thinker = ChatThinker(
            self.actor,
            request.messages,
            prompts,
            system_is_task=self.system_is_task,
            callbacks=request.callbacks,
            **request.call,
        )
        # The meter counts the other roles; the thinker counts the policy.
        with counting() as meter:
            decision = await decide(
                trajectory_of(request.messages, system_is_task=self.system_is_task),
                thinker,
                self._proposer(prompts, request),
                request.chosen.critic,
                self.settings,
                prompts=prompts,
            )
        decision = replace(decision, notes=(*dict.fromkeys(thinker.notes), *decision.notes))
        return _result(decision, {"policy": thinker.usage, **meter.read()})

    def _prompts_for(self, request: DecisionRequest) -> PnlcPrompts:
        """Add the agent's tools to the prompts, which are sent without bound tools."""
        parts = (self.prompts.task, described(request.call.get("tools") or ()))
        return replace(self.prompts, task="\n\n".join(part for part in parts if part))

    def _proposer(self, prompts: PnlcPrompts, request: DecisionRequest) -> Proposer:
        if self.proposer is not None and not isinstance(self.proposer, BaseChatModel):
            return self.proposer
        model = self.actor if self.proposer is None else self.proposer
        return ChatGoalProposer(role_answers(model, "world model", run_name="goals"), prompts)


def _fitting(critic: Any, settings: PnlcSettings) -> Any:
    """Adapt the critic to the settings. Raises `ConfigurationError` if it does not fit."""
    if not settings.needs_critic:
        return critic
    if settings.critique == "goals":
        return for_pnlc(critic)
    odds = for_lac(critic, returns=settings.returns)
    if isinstance(odds, NoOdds):
        raise ConfigurationError(
            'critique="value" shows the model a likelihood of success, and `uniform` has none: name another critic'
        )
    return odds


def _result(decision: PnlcDecision, usage: dict[str, Usage]) -> DecisionResult:
    """Return the final message, the record and the summary; the message contains nothing of discarded thoughts."""
    record: Record = {**decision.as_plain(), "usage": {role: used.as_plain() for role, used in usage.items()}}
    summary = {name: record[name] for name in ("round_trips", "notes", "usage", "chosen")}
    return DecisionResult(decision.sample.payload, record, {**summary, "thoughts": len(decision.thoughts)})
