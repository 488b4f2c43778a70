"""The nouns that flow through the library, and the protocols between its rooms.

    task -> particles -> step -> value -> potential -> log_weights -> ancestors -> fork -> best trajectory

Letters in shapes: `N` particles, `T` steps, `K` candidate actions, `G` goals, `D` embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from amc_agents.usage import Usage

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is asked to do, once."""

    id: str
    """Unique within its world; a dataset refers to a task by it."""
    instruction: str
    """The first text that the agent sees: rules, goal, initial observation."""
    payload: Any = None
    """What the world needs to set itself up; opaque to everything else."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round: the agent thinks and acts, the world answers."""

    action: str
    """What was done: the text after `Action:`, or tool calls as canonical JSON."""
    observation: str = ""
    """What the world answered."""
    thought: str = ""
    """What the agent wrote before it acted; may be empty."""
    reward: float = 0.0
    """Reward on arriving in the state after this step, in the world's units."""
    message_ids: tuple[str, ...] = ()
    """Ids of the messages that this step was built from, where there are any."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A task and the steps made so far: the state s_t with t = len(steps).

    Immutable, so that particles share their past by reference.
    """

    task: Task
    steps: tuple[Step, ...] = ()
    done: bool = False
    """True once the world or the agent has ended it, or the horizon has cut it."""
    truncated: bool = field(default=False, compare=False)
    """It is done because a limit of steps cut it, the horizon's or the world's own: its future is unknown, and counts
    as 0 all the same. No part of what a critic reads, of a dataset, or of what makes two trajectories equal."""

    @property
    def return_(self) -> float:
        """R_t: the sum of the rewards so far, in the world's units."""
        return float(sum(step.reward for step in self.steps))

    def extended(self, step: Step, *, done: bool = False, truncated: bool = False) -> Trajectory:
        """This trajectory with one more step."""
        return replace(self, steps=(*self.steps, step), done=done, truncated=truncated)

    def prefix(self, length: int) -> Trajectory:
        """The state after `length` steps, as it was when it was passed through."""
        whole = length >= len(self.steps)
        return replace(self, steps=self.steps[:length], done=self.done and whole, truncated=self.truncated and whole)


@dataclass(frozen=True, slots=True)
class TimeStep:
    """What a world answers. Use the four constructors: illegal combinations are then unwritable."""

    observation: str
    reward: float = 0.0
    """Reward of this step alone (never cumulative), in the world's units."""
    terminated: bool = False
    """The task has ended by the world's own rule."""
    truncated: bool = False
    """The world has cut the episode short (a step limit)."""

    @classmethod
    def restart(cls, observation: str) -> TimeStep:
        """The first time step of an episode: no reward yet."""
        return cls(observation)

    @classmethod
    def transition(cls, observation: str, reward: float = 0.0) -> TimeStep:
        """An ordinary step: the episode goes on."""
        return cls(observation, reward)

    @classmethod
    def termination(cls, observation: str, reward: float) -> TimeStep:
        """The last step, by the world's own rule."""
        return cls(observation, reward, terminated=True)

    @classmethod
    def truncation(cls, observation: str, reward: float = 0.0) -> TimeStep:
        """The last step, by a limit: the future is cut off, not worthless."""
        return cls(observation, reward, truncated=True)

    @property
    def done(self) -> bool:
        """The episode is over."""
        return self.terminated or self.truncated


@runtime_checkable
class Forkable(Protocol):
    """A world that keeps particles apart and gives no rewards: any object of yours that can be forked.

    Tools reach the particle's own by `current_environment(YourClass)`, with its methods and attributes.
    """

    async def fork(self, seed: int) -> Forkable:
        """A second world in this one's state: the same past, a future drawn from `seed`.

        Raises `ForkError` where the world cannot do it truthfully.
        """
        ...

    async def close(self) -> None:
        """Free what the world holds; safe to call twice."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A text world that can be forked.

    The agent's mistakes are observations; an exception means that the world itself is broken.
    `amc_agents.testing.check_environment` proves the contract for an implementation.
    """

    async def reset(self, task: Task) -> TimeStep:
        """Start `task` afresh and give its first observation."""
        ...

    async def step(self, action: str) -> TimeStep:
        """Carry out one action. Raises `EnvironmentStateError` before `reset` or after the end."""
        ...

    async def fork(self, seed: int) -> Environment:
        """A second world in this one's state: the same past, a future drawn from `seed`.

        Raises `ForkError` where the world cannot do it truthfully.
        """
        ...

    async def close(self) -> None:
        """Free what the world holds; safe to call twice."""
        ...


@runtime_checkable
class Critic(Protocol):
    """Predicts what a trajectory will still earn."""

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` the predicted return still to come, in the world's reward units, in one batch."""
        ...


@runtime_checkable
class ActionCritic(Protocol):
    """Judges candidate actions of one state (LAC)."""

    async def q_values(self, trajectory: Trajectory, actions: Sequence[str]) -> FloatArray:
        """`[K]` Q(s, a) as log-odds: log p(GOOD) - log p(BAD) of each action at the newest state, in one batch."""
        ...


@runtime_checkable
class GoalCritic(Protocol):
    """Says how likely goals are reached from one state (PNLC)."""

    async def reach(self, trajectory: Trajectory, thought: str, goals: Sequence[str]) -> FloatArray:
        """`[G]` in [0, 1]: how likely each goal is reached after acting on the thought, in one batch."""
        ...


@dataclass(frozen=True, slots=True)
class WeighingPoint:
    """What happened where the run was weighed, and perhaps resampled."""

    step: int
    """Steps that the live particles had made."""
    values: FloatArray
    """`[N]` the return so far plus the predicted rest, in reward units: the return itself where a trajectory has ended,
    the prediction of the whole return where no rewards are seen. NaN where the critic failed, or the particle did."""
    log_weights: FloatArray
    """`[N]` unnormalised log-weights after weighing, before any resampling."""
    ess: float
    """Effective sample size of retired and live particles together, at this point."""
    ancestors: IntArray | None
    """`[N]` the slot that each slot continues, or None where nothing was resampled."""
    retired: tuple[int, ...] = ()
    """Slots whose finished particle was stored away here."""


@dataclass(frozen=True, slots=True)
class Population:
    """The final particles of a run: those still in their slots first, then the retired ones.

    `M` is their number: N, plus one for each retired particle.
    """

    trajectories: tuple[Trajectory, ...]
    """`[M]` the final trajectories; copies of a finished one are the same object."""
    log_weights: FloatArray
    """`[M]` unnormalised: their log-sum-exp is the run's `log_evidence`."""
    log_weights_since: FloatArray
    """`[M]` weights gathered since the last resampling that each has been through: not comparable between live and
    retired particles."""
    values: FloatArray
    """`[M]` as `WeighingPoint.values`, where each was last weighed: the return, or its prediction where rewards were
    hidden; NaN where the critic, or the particle, failed."""
    failed: tuple[bool, ...] = ()
    """`[M]` particles that an instrument's failure ended; their weight is 0."""


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run as a value."""

    best: Trajectory
    """The selected trajectory."""
    best_index: int
    """Its index in `population`, or -1 where it comes from the archive of finished ones."""
    population: Population
    history: tuple[WeighingPoint, ...]
    """One record per weighing point, in order."""
    log_evidence: float
    """log Z: exp of it estimates E_pi[exp(R_T / beta)] without bias. NaN where the run stopped early, or where the
    critic failed at ends that only it can weigh."""
    usage: Mapping[str, Usage]
    """By role: "policy" and "critic"."""
    seed: int
    """The seed used, drawn where none was given."""
    config: Mapping[str, Any]
    """The settings of the run, as plain values."""
    select: str
    """How `best` was chosen."""
    deployable: bool
    """True where no reward was seen at any point of the run: then the pick could be made in production."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures has to know: particles lost, a critic that fell back."""
    outputs: tuple[Any, ...] = field(default=(), repr=False)
    """`[M]` each particle's final agent state."""
    best_output: Any = field(default=None, repr=False)
    """The final agent state of the selected particle."""
    usage_by_model: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)
    """{role: {model: usage}}, a model being `provider:name` where its provider is known: what a price is found by."""

    def as_plain(self) -> dict[str, Any]:
        """The run as JSON has it: dictionaries, lists, strings, numbers and None; what a served graph streams.

        `best["return_"]` and `population["returns"]` are there besides the fields. NaN and infinity are None, what
        JSON cannot hold is the name of its type.
        """
        from amc_agents.plain import fields_of, plain

        found: dict[str, Any] = plain(fields_of(self))
        found["best"]["return_"] = plain(self.best.return_)
        found["population"]["returns"] = plain([one.return_ for one in self.population.trajectories])
        return found

    def __repr__(self) -> str:
        """At most 20 lines for a reader: pick, particles, resamplings, log Z, usage, cost and notes."""
        from amc_agents.run_summary import summary

        return summary(self)
