"""Chat models in the roles of PSRL and IDS: each with a temperature and a prompt of its own."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel

from amc_agents.decisions.asking import Answers
from amc_agents.errors import ConfigurationError
from amc_agents.psrl.estimates import ChatEstimator, Estimator
from amc_agents.psrl.roles import ChatPolicy, ChatSampler, ChatUpdater, Check, SamplePolicy, Sampler, Updater
from amc_agents.runtime.inner_calls import role_answers


@dataclass(frozen=True)
class RoleModel:
    """A chat model for one role."""

    model: BaseChatModel = field(repr=False)
    """Is asked. What it says is never streamed."""
    temperature: float | None = None
    """Of the role; None: the model's own. A sampler at 0 draws the same hypothesis every time."""
    prompt: str | None = None
    """In place of the library's; see the role in `amc_agents.psrl.roles` for its fields."""
    check: Check | None = None
    """Of a sampler or updater: what is wrong with its answer; it is then asked once more."""
    timeout: float | None = None
    """Seconds for an answer; None: as long as it takes."""

    def __post_init__(self) -> None:
        """Refuse a temperature that the model does not have."""
        if self.temperature is not None and "temperature" not in type(self.model).model_fields:
            raise ConfigurationError(
                f"temperature={self.temperature} was given for a role, and {type(self.model).__name__} has no setting "
                "`temperature`: leave it out, or use another model"
            )

    @property
    def tempered(self) -> BaseChatModel:
        """The model at the role's temperature."""
        if self.temperature is None:
            return self.model
        return self.model.model_copy(update={"temperature": self.temperature})

    def answers(self, role: str, threads: Executor | None = None) -> Answers:
        """Asks the model.

        Args:
            role: for usage and traces.
            threads: as in `amc_agents.runtime.inner_calls.ask`.
        """
        return role_answers(self.tempered, role, threads)


def role_model(given: Any) -> Any:
    """A chat model as a `RoleModel`; what is none stays as it is."""
    return RoleModel(given) if isinstance(given, BaseChatModel) else given


def as_sampler(given: RoleModel | Sampler, threads: Executor | None = None) -> Sampler:
    """What draws hypotheses."""
    if not isinstance(given, RoleModel):
        return given
    answers = given.answers("posterior sampler", threads)
    return ChatSampler(answers, prompt=given.prompt, check=given.check, timeout=given.timeout)


def as_policy(given: RoleModel | SamplePolicy, threads: Executor | None = None) -> SamplePolicy:
    """What acts on them."""
    if not isinstance(given, RoleModel):
        return given
    return ChatPolicy(given.answers("policy", threads), prompt=given.prompt, timeout=given.timeout)


def as_updater(given: RoleModel | Updater, threads: Executor | None = None) -> Updater:
    """What writes the posterior anew."""
    if not isinstance(given, RoleModel):
        return given
    answers = given.answers("posterior updater", threads)
    return ChatUpdater(answers, prompt=given.prompt, check=given.check, timeout=given.timeout)


def as_estimator(
    regret: RoleModel | Estimator,
    information: RoleModel | None,
    best_return: float | None,
    threads: Executor | None = None,
) -> Estimator:
    """What says what actions cost and teach; an estimator of one's own in place of the first says both."""
    if not isinstance(regret, RoleModel):
        return regret
    information = information or RoleModel(regret.model)
    return ChatEstimator(
        regret.answers("regret estimator", threads),
        information.answers("information estimator", threads),
        best_return=best_return,
        regret_prompt=regret.prompt,
        information_prompt=information.prompt,
        timeout=regret.timeout,
    )
