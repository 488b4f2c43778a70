"""Comparisons with the user's own agent: the methods around it, and a comparison as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, cast

from amc_agents.bench import methods
from amc_agents.bench.comparison import Comparison, Played
from amc_agents.bench.methods import AMC, BEST_OF_N, Method, Tuned, stopping_methods
from amc_agents.bench.own.agent import OwnAgent, load_own_agent
from amc_agents.bench.own.tasks import Split, read_tasks, tasks_hash
from amc_agents.bench.plan import Plan
from amc_agents.bench.tuning import scaled
from amc_agents.prices import Price
from amc_agents.runtime.deciding import Sink
from amc_agents.types import Task

LABELS = {methods.REACT: "plain agent", methods.REACT_GREEDY: "plain agent, greedy"}
_STEPS = (6, 12)
"""Steps after which to resample an episode of 20 steps, before they are tuned."""
_BETA = 0.1
"""For a success that returns 1, before it is tuned."""


@dataclass(frozen=True)
class OwnComparison(Comparison):
    """Methods x tasks x seeds with an agent of the user, whose `make_agent` stands for policy and agent."""

    own: OwnAgent = field(kw_only=True)

    def played(self, method: Method, task: Task, sink: Sink | None = None) -> Played:
        """Return the agent of a run, its input, and its arguments of `amc`."""
        graph = self.own.make_agent(method.temperature)
        return Played(graph, self.own.arguments_for(task, graph), self.input_of(method, task))

    def input_of(self, method: Method, task: Task) -> Mapping[str, Any]:
        """Return the agent's input."""
        return self.own.input_of(task)


def own_methods(own: OwnAgent, judge: str | None = None) -> list[Method]:
    """Return the standard methods for an agent, with settings that suit its horizon and the size of a success.

    Args:
        own: the agent.
        judge: a chat model, as `provider:model`, for SMC with this model as critic.
    """
    plain = Tuned(temperature=own.temperature, beta=_BETA * own.success)
    steered = replace(plain, steps=scaled(_STEPS, own.horizon))
    standard = [
        methods.react(plain),
        *([] if own.temperature_is_fixed else [methods.react_greedy()]),
        methods.best_of_n(plain),
        methods.smc(steered),
        methods.amc(steered),
        methods.amc_hidden(steered),
        *(methods.judged(judge, steered) if judge else []),
    ]
    return [replace(method, label=LABELS.get(method.name, method.label)) for method in standard]


def same_agent(graph: Any) -> Any:
    """Return a graph: the user's `make_agent` has built it already."""
    return graph


@dataclass(frozen=True)
class OwnPlan(Plan):
    """The user's own agent on the tasks of a file. Without a critic, it is "uniform"."""

    methods: tuple[Method, ...] = field(default=(), kw_only=True)
    agent: str
    """`module` or `module:object`; see `load_own_agent`."""
    tasks_file: Path
    split: Split = field(default="test", kw_only=True)
    most: int | None = field(default=None, kw_only=True)
    """Number of tasks, at most; None: all that the file has."""
    prices: Mapping[str, Price] = field(default_factory=dict, kw_only=True)
    """The user's prices by model."""

    @property
    def own(self) -> OwnAgent:
        """The agent, loaded when it is first needed. It is not a field, because it need not be picklable."""
        return _loaded(self.agent)

    @property
    def where(self) -> str:
        """What the methods act in and on, as the end of a title."""
        return f" around {self.agent}: {self.n_tasks} tasks of {self.tasks_file.name} ({self.split})"

    @property
    def reward_scale(self) -> float:
        """The return of a success, in whose units beta is tuned."""
        return self.own.success

    @property
    def critic_spec(self) -> str:
        """The critic string."""
        return self.critic or "uniform"

    @property
    def horizon(self) -> int:
        """Maximum number of steps of a trajectory."""
        return self.own.horizon

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.tasks())

    @property
    def about(self) -> dict[str, Any]:
        """What determines the results besides the settings of the methods; checked when a command is resumed."""
        return {
            "agent": self.agent,
            "agent_source": self.own.source_hash,
            "tasks": self.tasks_file.name,
            # Those of the file, so that a folder with results of some tasks can be continued with more.
            "tasks_hash": tasks_hash(read_tasks(self.tasks_file, self.split, first=self.first)),
            "split": self.split,
        }

    def tasks(self) -> list[Task]:
        """Return the tasks."""
        return read_tasks(self.tasks_file, self.split, first=self.first)[: self.most]

    def part(self, skip: int, n_tasks: int) -> OwnPlan:
        """Return the plan with `n_tasks` tasks, after the first `skip` ones."""
        return replace(self, first=self.first + skip, most=n_tasks)

    def standard_methods(self, judge: str | None = None) -> list[Method]:
        """Return the methods that run if none are named."""
        return own_methods(self.own, judge)

    def search_methods(self) -> list[Method]:
        """Return the methods that end at the first success; a tree search samples the agent's chat model, inside it."""
        goes_on = {method.name: method for method in self.standard_methods()}
        return stopping_methods(goes_on[BEST_OF_N], goes_on[AMC], self.own.success)

    @property
    def cannot_prompt(self) -> str:
        """Why the methods that prompt the policy cannot run."""
        return f"the prompts of {self.agent} are inside the agent: choose a world of the library (--world, --model)"

    def comparison(self, tasks: Sequence[Task] | None = None) -> OwnComparison:
        """Return the comparison on these tasks; None: on all tasks of the plan."""
        return OwnComparison(
            own=self.own,
            policy=cast(Any, self.own.make_agent),
            agent=same_agent,
            environment=_no_common_world,
            tasks=self.tasks() if tasks is None else tasks,
            methods=self.methods,
            seeds=self.seeds,
            n_particles=self.n_particles,
            critic=self.critic_spec,
            horizon=self.horizon,
            success=self.own.success,
            about=self.about,
            prices=self.prices,
        )


@lru_cache(maxsize=8)
def _loaded(name: str) -> OwnAgent:
    return load_own_agent(name)


def _no_common_world() -> NoReturn:
    raise NotImplementedError("an own agent makes a world for each task")
