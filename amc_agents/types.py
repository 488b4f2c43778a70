"""Data types and protocols that every part of the library shares.

    task -> particles -> step -> value -> potential -> log_weights -> ancestors -> fork -> best trajectory

Letters in shapes: `N` particles, `T` steps, `K` candidate actions, `G` goals, `D` embedding.

`plain` converts any value to JSON-compatible values, for streams and files, without ever failing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """One task for an agent."""

    id: str
    """Unique within its world; a dataset refers to a task by it."""
    instruction: str
    """The first text that the agent sees: rules, goal, initial observation."""
    payload: Any = None
    """Data for the world's set-up; opaque to everything else."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round: the agent's thought and action, and the world's observation."""

    action: str
    """The text after `Action:`, or tool calls as canonical JSON."""
    observation: str = ""
    """The world's answer to the action."""
    thought: str = ""
    """Text that the agent wrote before the action; may be empty."""
    reward: float = 0.0
    """Reward on arriving in the state after this step, in the world's units."""
    message_ids: tuple[str, ...] = ()
    """Ids of the messages that this step was built from; empty if it was not built from messages."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A task and the steps made so far: the state s_t with t = len(steps).

    Immutable, so that particles share their past by reference.
    """

    task: Task
    steps: tuple[Step, ...] = ()
    done: bool = False
    """True if the world or the agent ended the trajectory, or the horizon cut it."""
    truncated: bool = field(default=False, compare=False)
    """True if a step limit (the horizon or the world's own) cut the trajectory. Its future return is unknown but counts
    as 0. Critics and datasets ignore this field, and so does equality."""

    @property
    def return_(self) -> float:
        """R_t: the sum of the rewards so far, in the world's units."""
        return float(sum(step.reward for step in self.steps))

    @property
    def length(self) -> int:
        """Number of characters of all thoughts, actions and observations."""
        return sum(len(step.thought) + len(step.action) + len(step.observation) for step in self.steps)

    @property
    def answer(self) -> str:
        """The text of the last action, without differences of case and white space; "" before the first step."""
        return " ".join(self.steps[-1].action.split()).casefold() if self.steps else ""

    def extended(self, step: Step, *, done: bool = False, truncated: bool = False) -> Trajectory:
        """This trajectory with one more step."""
        return replace(self, steps=(*self.steps, step), done=done, truncated=truncated)

    def prefix(self, length: int) -> Trajectory:
        """The state after the first `length` steps, not done unless that is the whole trajectory."""
        whole = length >= len(self.steps)
        return replace(self, steps=self.steps[:length], done=self.done and whole, truncated=self.truncated and whole)


@dataclass(frozen=True, slots=True)
class TimeStep:
    """A world's answer to `reset` or `step`. Use the four constructors, which rule out illegal combinations."""

    observation: str
    reward: float = 0.0
    """Reward of this step alone (never cumulative), in the world's units."""
    terminated: bool = False
    """True if the episode ended by the world's rules."""
    truncated: bool = False
    """True if the world cut the episode at a step limit."""

    @classmethod
    def restart(cls, observation: str) -> TimeStep:
        """First time step of an episode, without a reward."""
        return cls(observation)

    @classmethod
    def transition(cls, observation: str, reward: float = 0.0) -> TimeStep:
        """Time step after which the episode continues."""
        return cls(observation, reward)

    @classmethod
    def termination(cls, observation: str, reward: float) -> TimeStep:
        """Last time step, where the world's rules end the episode."""
        return cls(observation, reward, terminated=True)

    @classmethod
    def truncation(cls, observation: str, reward: float = 0.0) -> TimeStep:
        """Last time step, where a step limit cuts the episode."""
        return cls(observation, reward, truncated=True)

    @property
    def done(self) -> bool:
        """True if the episode is over."""
        return self.terminated or self.truncated


@runtime_checkable
class Forkable(Protocol):
    """A world without rewards that keeps particles isolated: any object that can be forked.

    Tools get their particle's instance, with its own methods and attributes, from `current_environment(YourClass)`.
    """

    async def fork(self, seed: int) -> Forkable:
        """Copy the world: the same state, with further randomness drawn from `seed`.

        Raises `ForkError` if the world cannot be copied faithfully.
        """
        ...

    async def close(self) -> None:
        """Release the world's resources; safe to call twice."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A text world that can be forked.

    An agent's mistake is an observation; an exception means that the world itself is broken.
    `amc_agents.testing.check_environment` tests an implementation against this contract.
    """

    async def reset(self, task: Task) -> TimeStep:
        """Start `task` from its beginning and return the first observation."""
        ...

    async def step(self, action: str) -> TimeStep:
        """Execute an action. Raises `EnvironmentStateError` before `reset` or after the end."""
        ...

    async def fork(self, seed: int) -> Environment:
        """Copy the world: the same state, with further randomness drawn from `seed`.

        Raises `ForkError` if the world cannot be copied faithfully.
        """
        ...

    async def close(self) -> None:
        """Release the world's resources; safe to call twice."""
        ...


@runtime_checkable
class Restorable(Forkable, Protocol):
    """A world whose state outlives the process, so that a run with a checkpointer can go on after a crash."""

    async def snapshot(self) -> Any:
        """Save the state and return a reference to it, made of JSON values and bytes.

        The saved state stays as it is until `release`, whatever this world does next, even if the process is killed.
        """
        ...

    async def restore(self, snapshot: Any) -> None:
        """Replace the state of this new world by a saved state, which several worlds may restore.

        Raises `WorldError` if the saved state is missing or damaged.
        """
        ...

    async def release(self, snapshot: Any) -> None:
        """Delete a saved state, of this world or of another world of its kind; safe to call twice and after `close`."""
        ...


@runtime_checkable
class Critic(Protocol):
    """Predicts the future return of trajectories."""

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predicted future returns, in the world's reward units, computed in one batch."""
        ...


@runtime_checkable
class ActionCritic(Protocol):
    """Scores candidate actions in one state (LAC)."""

    async def q_values(self, trajectory: Trajectory, actions: Sequence[str]) -> FloatArray:
        """`[K]` Q(s, a) as log-odds: log p(GOOD) - log p(BAD) of each action at the newest state, in one batch."""
        ...


@runtime_checkable
class GoalCritic(Protocol):
    """Predicts the probability of reaching goals from one state (PNLC)."""

    async def reach(self, trajectory: Trajectory, thought: str, goals: Sequence[str]) -> FloatArray:
        """`[G]` probability of reaching each goal after acting on the thought, in [0, 1], computed in one batch."""
        ...


DEEPEST = 64
"""Maximum nesting; deeper values, as in cyclic objects, are replaced by the name of their type."""
LARGEST = 2**63
"""Integers from here on become text, since many JSON parsers do not support larger numbers."""


def plain(value: Any, deepest: int = DEEPEST) -> Any:
    """Convert a value to dictionaries with text keys, lists, text, numbers, booleans and None.

    NaN and infinity become None. Dataclasses, named tuples and pydantic models (such as messages) become dictionaries.
    Any other object becomes the name of its type, because its `repr` might contain secrets.
    """
    match value:
        case None | bool():
            return value
        case str():
            # A lone surrogate, as in a model's broken output, cannot be encoded.
            return value.encode("utf-8", "replace").decode("utf-8")
        case int():
            return int(value) if -LARGEST <= value < LARGEST else hex(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case np.generic() | np.ndarray():
            return plain(value.tolist(), deepest) if value.dtype.kind in "biuf" else _named(value)
        case Enum():
            return plain(value.value, deepest)
        case date() | time() | Decimal() | PurePath() | UUID():
            return str(value)
    return _nested(value, deepest - 1) if deepest else _named(value)


def fields_of(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields without converting their values."""
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


def _nested(value: Any, deepest: int) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = fields_of(value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        value = dict(zip(value._fields, value, strict=False))
    elif hasattr(value, "model_dump") and not isinstance(value, type):
        try:
            value = value.model_dump()
        except Exception:  # a user's class may raise anything
            return _named(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(held, deepest) for key, held in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(held, deepest) for held in value]
    return _named(value)


def _key(key: Any) -> str:
    plain_key = plain(list(key) if isinstance(key, tuple) else key)
    return plain_key if isinstance(plain_key, str) else str(plain_key)


def _named(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
