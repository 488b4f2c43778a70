"""A comparison in a registered world as plain values, with a policy that is named.

A policy is a small one that was trained for a world, or any chat model. A chat model that was not trained for a world
is given its rules as a system message (`WorldSpec.rules`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from langchain_core.language_models import BaseChatModel

from amc_agents.bench import crafting
from amc_agents.bench.comparison import Comparison
from amc_agents.bench.engine import CountCallback
from amc_agents.bench.executors import PROCESSES, execute_job
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.records import RunResult
from amc_agents.bench.runner import ComparisonWork
from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.critics.value.local import ADAPTER
from amc_agents.envs.registry import WorldSpec, world
from amc_agents.errors import ConfigurationError
from amc_agents.lac.text_scoring import EmbeddedScorer
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.runtime.text_agent import text_agent
from amc_agents.settings import AmcSettings
from amc_agents.smc import Adaptive
from amc_agents.types import Task

CRAFTING = "crafting"


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """Methods and tasks as plain values: in a registered world, or around the user's own agent (`bench.own`)."""

    methods: tuple[Method, ...]
    """The methods."""
    split: str = "test"
    """The tasks' split."""
    first: int = 0
    """Number of the first task of the split."""
    seeds: tuple[int, ...] = (0,)
    n_particles: int | Adaptive = AmcSettings.n_particles
    critic: str | None = None
    """Critic string; None: the plan's own default."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What the methods act in and on, as the end of a title."""

    @property
    @abstractmethod
    def critic_spec(self) -> str:
        """The critic string."""

    @property
    def has_critic(self) -> bool:
        """True if a critic is named or shipped."""
        return self.critic is not None

    @property
    @abstractmethod
    def horizon(self) -> int:
        """Maximum number of steps of a trajectory."""

    @property
    def reward_scale(self) -> float:
        """The return of a success, in whose units beta is tuned; 1: the grids are in the units of the rewards."""
        return 1.0

    @property
    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What determines the results besides the settings of the methods; checked when a command is resumed."""

    @property
    def n_runs(self) -> int:
        """Number of runs in all."""
        return len(self.methods) * len(self.tasks()) * len(self.seeds)

    @abstractmethod
    def tasks(self) -> list[Task]:
        """Return the tasks."""

    @abstractmethod
    def part(self, skip: int, n_tasks: int) -> Self:
        """Return the plan with `n_tasks` tasks, after the first `skip` ones."""

    @abstractmethod
    def standard_methods(self, judge: str | None = None) -> list[Method]:
        """Return the methods that run if none are named."""

    def decision_methods(self, critic: str | None, k: int) -> list[Method]:
        """Return the methods that decide each step among K candidates."""
        return []

    @abstractmethod
    def search_methods(self) -> list[Method]:
        """Return tree searches, and the methods that they are compared with."""

    @property
    @abstractmethod
    def cannot_prompt(self) -> str | None:
        """Why the methods that prompt the policy cannot run; None: they can."""

    def prompted_methods(self, tuned: Tuned | None, k: int) -> list[Method]:
        """Return the methods whose policy must follow instructions, with ReAct's settings."""
        return []

    @abstractmethod
    def comparison(self, tasks: Sequence[Task] | None = None) -> Comparison:
        """Return the comparison on these tasks; None: on all tasks of the plan."""

    def job(self, *, keep_decisions: bool = False, keep_trajectories: bool = False) -> PlanJob:
        """Return the runs as a job of the engine."""
        return PlanJob(self, keep_decisions, keep_trajectories)


@dataclass(frozen=True)
class ComparisonPlan(Plan):
    """Methods and tasks in a registered world.

    Without a critic, it is the value model shipped with the policy, or "uniform" if the policy has none.
    """

    methods: tuple[Method, ...]
    n_tasks: int
    world: str = CRAFTING
    """A name that `amc_agents.envs.registry.world` accepts."""
    band: tuple[int, int] | None = None
    """Difficulty in the crafting world: minimum and maximum number of steps of the planner's solution. None: the
    demo's band."""
    model: str | None = None
    """The policy, as `policy_model` reads it. None: the world's own policy."""
    plain: bool = False
    """Drive the agent by a plain loop instead of its graph: the same results in half the time."""

    def __post_init__(self) -> None:
        """Refuse a difficulty band outside the crafting world."""
        if self.band is not None and self.world != CRAFTING:
            raise ConfigurationError(
                f"a difficulty band applies to the crafting world only, and this world is {self.world}: leave it out"
            )

    @property
    def world_spec(self) -> WorldSpec:
        """The registered world."""
        return world(self.world)

    @property
    def difficulty(self) -> tuple[int, int] | None:
        """The difficulty band of the crafting world; None in other worlds."""
        return self.band or (crafting.BAND if self.world == CRAFTING else None)

    @property
    def where(self) -> str:
        """What the methods act in and on, as the end of a title."""
        band = self.difficulty
        return f" in the {self.world} world" + (f": tasks of {band[0]} to {band[1]} steps" if band else "")

    @property
    def horizon(self) -> int:
        """Maximum number of steps of a trajectory."""
        return self.world_spec.horizon

    @property
    def policy(self) -> str:
        """Name or folder of the policy.

        Raises:
            ConfigurationError: the plan names no policy, and the world has none.
        """
        policy = self.world_spec.model if self.model is None else self.model
        if policy is None:
            raise ConfigurationError(f"the world {self.world} has no policy: choose a model (--model FOLDER)")
        return policy

    @property
    def rules(self) -> str:
        """How to act, for a policy that was not trained for the world; empty for one that was."""
        return "" if is_embedded(self.policy) else self.world_spec.rules

    def input_of(self, task: Task) -> dict[str, Any]:
        """Return the input of an agent for a task."""
        return {"messages": [*([("system", self.rules)] if self.rules else []), ("user", task.instruction)]}

    @property
    def critic_spec(self) -> str:
        """The critic string."""
        if self.critic is not None:
            return self.critic
        return f"embedded:{self.policy}" if self.has_critic else "uniform"

    @property
    def has_critic(self) -> bool:
        """True if the plan names a critic, or a value model is shipped with the policy."""
        shipped = is_embedded(self.policy) and (model_folder(self.policy) / ADAPTER).is_dir()
        return self.critic is not None or shipped

    def tasks(self) -> list[Task]:
        """Return the tasks."""
        return list(_tasks(self.world, self.difficulty, self.n_tasks, self.split, self.first))

    def part(self, skip: int, n_tasks: int) -> ComparisonPlan:
        """Return the plan with `n_tasks` tasks, after the first `skip` ones. They may go beyond this plan's tasks."""
        return replace(self, first=self.first + skip, n_tasks=n_tasks)

    def standard_methods(self, judge: str | None = None) -> list[Method]:
        """Return the methods that run if none are named."""
        return crafting.methods(judge)

    def decision_methods(self, critic: str | None, k: int) -> list[Method]:
        """Return the methods that decide each step among K candidates."""
        spec = self.world_spec
        return crafting.decision_methods(critic, k, spec.oracle, spec.actions is not None)

    def search_methods(self) -> list[Method]:
        """Return tree searches, and Best-of-N and AMC that end at the first success as these do."""
        return crafting.search_methods(self.world_spec.success)

    @property
    def cannot_prompt(self) -> str | None:
        """Why the methods that prompt the policy cannot run; None: they can."""
        if not is_embedded(self.policy):
            return None
        return (
            f"the policy {self.policy} was trained for its world and cannot follow instructions: choose a chat model "
            "(--model provider:model)"
        )

    def prompted_methods(self, tuned: Tuned | None, k: int) -> list[Method]:
        """Return ReflAct, Self-Plan and Reflexion if the policy can follow instructions."""
        return [] if self.cannot_prompt else crafting.prompted_methods(tuned, k)

    @property
    def about(self) -> dict[str, Any]:
        """What determines the results besides the settings of the methods; checked when a command is resumed."""
        band = {"band": list(self.difficulty)} if self.difficulty else {}
        return {"world": self.world, **identity_of(self.policy), **band, "split": self.split}

    def comparison(self, tasks: Sequence[Task] | None = None) -> Comparison:
        """Return the comparison on these tasks; None: on all tasks of the plan."""
        spec, policy = self.world_spec, self.policy
        return Comparison(
            policy=partial(policy_model, policy),
            environment=spec.make,
            tasks=self.tasks() if tasks is None else tasks,
            methods=self.methods,
            seeds=self.seeds,
            n_particles=self.n_particles,
            critic=self.critic_spec,
            horizon=spec.horizon,
            success=spec.success,
            about=self.about,
            scorer=(lambda: EmbeddedScorer.load(policy)) if is_embedded(policy) else None,
            actions=spec.actions,
            agent=plain_text_agent if self.plain else text_agent,
            rules=self.rules,
        )


@dataclass(frozen=True)
class PlanJob:
    """The runs of a plan as a job of the engine. A run that fails is recorded, and the others go on."""

    plan: Plan
    keep_decisions: bool = False
    keep_trajectories: bool = False
    command: str = "amc bench"

    def prepare(self) -> ComparisonWork:
        """Load the policy or the agent, the tasks and the critics."""
        return ComparisonWork(
            self.plan.comparison(), self.keep_decisions, keep_trajectories=self.keep_trajectories, keep_failures=True
        )


def run_plan(
    plan: Plan,
    out: str | Path,
    *,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
    keep_decisions: bool = False,
    keep_trajectories: bool = False,
    executor: str = PROCESSES,
) -> list[RunResult]:
    """Execute every run of a plan that `out` has no result of; see `amc_agents.bench.executors.execute_job`.

    Args:
        plan: what to run.
        out: the results folder.
        resume: continue with the results in `out`.
        n_workers: number of processes; each runs its share of the tasks.
        n_concurrent: runs in progress at the same time in each process.
        progress: called with the number of stored results, from time to time.
        keep_decisions: store every decision too, in the same folder.
        keep_trajectories: store every trajectory too; see `amc_agents.bench.run_files`.
        executor: where the runs are executed; see `amc_agents.bench.executors`.
    """
    job = plan.job(keep_decisions=keep_decisions, keep_trajectories=keep_trajectories)
    return execute_job(
        job, out, executor=executor, resume=resume, n_workers=n_workers, n_concurrent=n_concurrent, progress=progress
    )


@lru_cache(maxsize=8)
def _tasks(name: str, band: tuple[int, int] | None, n_tasks: int, split: str, first: int) -> tuple[Task, ...]:
    """Make the tasks. Cached, because a world may play each task to measure its difficulty."""
    if band is not None:
        return tuple(crafting.tasks(n_tasks, band, split=split, first=first))
    return tuple(world(name).tasks(n_tasks, split, first))


TRANSFORMERS = "hf:"


def is_embedded(name: str) -> bool:
    """Return whether a policy is a shipped model or a folder of that layout, which was trained for its world."""
    return ":" not in name


def policy_model(name: str, temperature: float) -> BaseChatModel:
    """Return a policy as a chat model.

    Args:
        name: a shipped model's name or a folder of that layout; `hf:FOLDER`, a transformers chat model; or
            `provider:model`, any LangChain chat model, with its key in the environment.
        temperature: sampling temperature.

    Raises:
        ConfigurationError: there is no such model.
    """
    if is_embedded(name):
        model_folder(name)
        return EmbeddedChatModel(model=name, temperature=temperature)
    if name.startswith(TRANSFORMERS):
        from amc_agents.models.transformers_chat import TransformersChatModel

        return TransformersChatModel(model=name.removeprefix(TRANSFORMERS), temperature=temperature)
    try:
        from langchain.chat_models import init_chat_model

        model: BaseChatModel = init_chat_model(name, temperature=temperature)
    except Exception as error:  # Each provider has its own, such as for a missing key.
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(f"the policy {name} cannot be used: {cause}") from error
    return model


def identity_of(name: str) -> dict[str, Any]:
    """Return what identifies a policy in stored settings."""
    if not is_embedded(name):
        return {"policy": name}
    folder = model_folder(name)
    return {"policy": folder.name, "policy_weights": weights_hash(folder)}
