"""Options of PSRL and IDS in middlewares and nodes, and the runtime of a node."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

from langchain_core.language_models import BaseChatModel
from langgraph.store.base import BaseStore

from amc_agents.budget import Budget
from amc_agents.concurrency.background import run_in_background
from amc_agents.psrl.posterior.priors import Prior
from amc_agents.psrl.posterior.updates import Guard, PosteriorMemory
from amc_agents.psrl.role_models import RoleModel
from amc_agents.psrl.roles import Updater

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
