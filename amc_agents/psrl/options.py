"""Options of PSRL and IDS: chat models in the roles, with their temperatures and prompts, and the runtime of a node."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, TypeVar

from langchain_core.language_models import BaseChatModel
from langgraph.store.base import BaseStore

from amc_agents.budget import Budget
from amc_agents.concurrency.background import run_in_background
from amc_agents.decisions import Answers
from amc_agents.errors import ConfigurationError
from amc_agents.psrl.ids import ChatEstimator, Estimator
from amc_agents.psrl.posterior.memory import Guard, PosteriorMemory
from amc_agents.psrl.posterior.priors import Prior
from amc_agents.psrl.roles import ChatSampler, ChatUpdater, Check, Sampler, Updater
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


T = TypeVar("T")


class ExplorerOptions(TypedDict, total=False):
    """Arguments shared by all middlewares and nodes of PSRL and IDS."""

    prior: str | Prior | None
    """The belief before the first observation, as a text or a typed prior. Required until the namespace has a
    posterior."""
    world: str
    """Rules that hold in all episodes, for all roles. Default: the roles know only what the episodes show."""
    namespace: str | Sequence[str] | Callable[[Any], str | Sequence[str]]
    """Namespace of the posterior in the graph's store, or a function of the runtime, for example to give each user a
    posterior. Default: "amc.posterior"."""
    memory: PosteriorMemory | None
    """Stores the posterior in place of the graph's store. Refused inside `amc`, where every particle would add to
    it."""
    updater: BaseChatModel | RoleModel | Updater | None
    """Writes the new posterior. Default: the model of the other roles."""
    update: Literal["trajectory", "step"]
    """When to update: at the end of an episode, or after each step. Default: PSRL "trajectory", IDS "step"."""
    guard: Guard | None
    """Finds statements that an update dropped. Default: `amc_agents.psrl.posterior.updates.dropped_statements`."""
    on_update_error: Literal["keep", "raise"]
    """If an update fails, "keep" continues with the old posterior and reports the failure in the log and the stream;
    the next start applies the observations. Default: "keep"."""
    abandoned_after: float
    """Seconds without progress after which an episode counts as abandoned and another episode learns from its steps. On
    the same thread, and after an error in the same process, this happens at once. Default: 600."""
    budget: Budget | None
    """Limits for all requests of the roles and of the policy, shared by whatever else the `Budget` is given to.
    Default: no limit."""
    seed: int | None
    """Seed for all random draws, with models that draw from `amc_agents.models.seeding`."""


@dataclass(frozen=True)
class Place:
    """Runtime of the node or middleware hook that is executing."""

    runtime: Any
    """LangGraph's runtime of the node."""

    @property
    def store(self) -> BaseStore | None:
        """The graph's store, if it has one."""
        store: BaseStore | None = self.runtime.store
        return store

    @property
    def thread(self) -> str | None:
        """Id of the conversation's thread, if it has one."""
        info = self.runtime.execution_info
        return None if info is None else info.thread_id


def in_sync(runtime: Any, work: Callable[[Place], Coroutine[Any, Any, T]]) -> T:
    """Run async work from a sync node, with the models' sync clients."""
    return run_in_background(work(Place(runtime)), n_workers=1)
