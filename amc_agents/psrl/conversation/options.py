"""The settings of PSRL's and IDS's faces, and where a face runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

from langchain_core.language_models import BaseChatModel
from langgraph.store.base import BaseStore

from amc_agents.concurrency.background import run_in_background
from amc_agents.concurrency.threads import DaemonThreads
from amc_agents.psrl.exact.priors import Prior
from amc_agents.psrl.posterior.updates import Guard, PosteriorMemory
from amc_agents.psrl.role_models import RoleModel
from amc_agents.psrl.roles import Updater

T = TypeVar("T")


class ExplorerOptions(TypedDict, total=False):
    """Arguments that every face takes."""

    prior: str | Prior | None
    """What is believed before anything was seen, as text or typed. Needed until the namespace has a posterior."""
    world: str
    """What stays the same in all episodes: the rules, for all roles. Default: the roles know what episodes tell."""
    namespace: str | Sequence[str] | Callable[[Any], str | Sequence[str]]
    """Where in the graph's store the posterior is kept; a function of the runtime gives each user one of their own.
    Default: "amc.posterior"."""
    memory: PosteriorMemory | None
    """Keeps the posterior in place of the graph's store. Refused under `amc`, where all particles would add to it."""
    updater: BaseChatModel | RoleModel | Updater | None
    """Writes the posterior anew. Default: the model of the other roles."""
    update: Literal["trajectory", "step"]
    """When: at an episode's end, or after each step. Default: PSRL "trajectory", IDS "step"."""
    guard: Guard | None
    """Finds what an update dropped. Default: `amc_agents.psrl.posterior.updates.dropped_statements`."""
    on_update_error: Literal["keep", "raise"]
    """Where an update fails, "keep" leaves the posterior as it is, and says so in log and stream; the observations are
    applied at the next start. Default: "keep"."""
    abandoned_after: float
    """Seconds after which an episode that nobody has gone on with counts as dead, so that another one learns from it.
    On the same thread, and after an error in the same process, it does so at once. Default: 600."""
    seed: int | None
    """Fixes all luck, with models that draw from `amc_agents.models.seeding`."""


@dataclass(frozen=True)
class Place:
    """Where a face runs."""

    runtime: Any
    """LangGraph's, of the node."""
    threads: Executor | None = None
    """Where sync clients are used; None for the async ones."""

    @property
    def store(self) -> BaseStore | None:
        """The graph's."""
        store: BaseStore | None = self.runtime.store
        return store

    @property
    def thread(self) -> str | None:
        """The conversation's thread, where it has one."""
        info = self.runtime.execution_info
        return None if info is None else info.thread_id


def in_sync(runtime: Any, work: Callable[[Place], Coroutine[Any, Any, T]]) -> T:
    """Do async work from a sync node, with the models' sync clients."""
    # Not the loop's own threads: all of them may be waiting for calls like this one.
    threads = DaemonThreads(N_THREADS, "explorer")
    try:
        return run_in_background(work(Place(runtime, threads)), n_workers=1)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


N_THREADS = 32
"""Requests that are under way at the same time in a sync call, at most."""
