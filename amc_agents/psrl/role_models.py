"""Chat models in the roles of PSRL and IDS, each with its own temperature and prompt."""

from __future__ import annotations

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
    """The model. Its answers are never streamed."""
    temperature: float | None = None
    """Sampling temperature; None for the model's own. A sampler at 0 draws the same hypothesis every time."""
    prompt: str | None = None
    """Replaces the library's template; the role in `amc_agents.psrl.roles` lists its fields."""
    check: Check | None = None
    """For a sampler or updater: finds errors in an answer, after which the model gets a second try."""
    timeout: float | None = None
    """Time limit for an answer in seconds; None for no limit."""

    def __post_init__(self) -> None:
        """Reject a temperature if the model has no such setting."""
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

    def answers(self, role: str) -> Answers:
        """Return a function that sends prompts to the model.

        Args:
            role: name of the role in usage and traces.
        """
        return role_answers(self.tempered, role)


def as_role_model(given: Any) -> Any:
    """Wrap a chat model in `RoleModel`; return anything else unchanged."""
    return RoleModel(given) if isinstance(given, BaseChatModel) else given


def as_sampler(given: RoleModel | Sampler) -> Sampler:
    """Return the role that draws hypotheses."""
    if not isinstance(given, RoleModel):
        return given
    answers = given.answers("posterior sampler")
    return ChatSampler(answers, prompt=given.prompt, check=given.check, timeout=given.timeout)


def as_policy(given: RoleModel | SamplePolicy) -> SamplePolicy:
    """Return the role that acts on hypotheses."""
    if not isinstance(given, RoleModel):
        return given
    return ChatPolicy(given.answers("policy"), prompt=given.prompt, timeout=given.timeout)


def as_updater(given: RoleModel | Updater) -> Updater:
    """Return the role that writes the new posterior."""
    if not isinstance(given, RoleModel):
        return given
    answers = given.answers("posterior updater")
    return ChatUpdater(answers, prompt=given.prompt, check=given.check, timeout=given.timeout)


def as_estimator(
    regret: RoleModel | Estimator,
    information: RoleModel | None,
    best_return: float | None,
) -> Estimator:
    """Return the estimator of regret and information. A custom estimator given as `regret` estimates both."""
    if not isinstance(regret, RoleModel):
        return regret
    information = information or RoleModel(regret.model)
    return ChatEstimator(
        regret.answers("regret estimator"),
        information.answers("information estimator"),
        best_return=best_return,
        regret_prompt=regret.prompt,
        information_prompt=information.prompt,
        timeout=regret.timeout,
    )
