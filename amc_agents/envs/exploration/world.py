"""Worlds for efficient exploration (LLM-PSRL, section 5): a hidden instance, played in episode after episode.

An instance is what stays the same through all episodes and what an agent has to find out: the arms' means, a lock's
code, a river's currents. Luck is drawn anew in each episode.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep, Trajectory


@dataclass(frozen=True, kw_only=True)
class Instance(ABC):
    """A hidden world and one of its episodes: the payload of a `Task`. Pure: states go in and come out."""

    seed: int
    """Of the luck in all its episodes."""
    episode: int = 0
    """Which of them this one is, from 0."""

    @property
    @abstractmethod
    def optimal_value(self) -> float:
        """V*(s_1): the expected return of an episode for one who knows the instance. Exact."""

    @property
    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """What can be done in every state, in the order in which the instruction names it."""

    @abstractmethod
    def start(self) -> Any:
        """The state that an episode begins in; immutable, as all states."""

    @abstractmethod
    def advance(self, state: Any, action: str, rng: np.random.Generator) -> tuple[Any, TimeStep]:
        """The next state, and what is told of it. An action that is none of `actions` wastes its turn."""

    @abstractmethod
    def regret(self, trajectory: Trajectory) -> float:
        """What the trajectory's steps have lost: the sum of V*_h(s_h) - Q*_h(s_h, a_h).

        Its expectation over an episode is V*(s_1) - V^pi(s_1), the paper's regret of that episode, and it varies less
        than V*(s_1) - return.
        """


class ExplorationWorld:
    """One episode of any `Instance`. A fork copies the state and draws its luck from its own seed."""

    def __init__(self) -> None:
        self._instance: Instance | None = None
        self._state: Any = None
        self._done = False
        self._rng = np.random.default_rng(0)

    async def reset(self, task: Task) -> TimeStep:
        """Start the episode of a task whose payload is an `Instance`."""
        if not isinstance(task.payload, Instance):
            raise EnvironmentStateError(
                f"ExplorationWorld.reset expected a Task with an Instance payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): make tasks with amc_agents.envs.exploration"
            )
        self._instance, self._done = task.payload, False
        self._state = self._instance.start()
        self._rng = np.random.default_rng([self._instance.seed, self._instance.episode])
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        """Carry out one of the instance's actions; anything else wastes a turn."""
        if self._instance is None or self._done:
            when = "before reset" if self._instance is None else "after the episode's end"
            raise EnvironmentStateError(f"ExplorationWorld.step was called {when}: call reset(task) first")
        self._state, answer = self._instance.advance(self._state, action.strip(), self._rng)
        self._done = answer.done
        return answer

    async def fork(self, seed: int) -> ExplorationWorld:
        """An independent world in the same state, with luck drawn from `seed`."""
        copy = ExplorationWorld()
        copy._instance, copy._state, copy._done = self._instance, self._state, self._done
        copy._rng = np.random.default_rng([abs(seed), int(seed < 0)])
        return copy

    async def close(self) -> None:
        """Nothing is held."""


def episodes(task: Task, n_episodes: int, *, first: int = 0) -> Iterator[Task]:
    """The same hidden instance again and again, each time with luck of its own: the episodes of one trial.

    Args:
        task: any task of an exploration world.
        n_episodes: how many (K in the paper).
        first: number of the first one; with it a trial is resumed.
    """
    for number in range(first, first + n_episodes):
        payload = replace(task.payload, episode=number)
        yield replace(task, id=f"{task.id}/episode/{number}", payload=payload)


def task_rng(split: str, seed: int) -> np.random.Generator:
    """What the instance of a task is drawn from; splits are separate streams."""
    return np.random.default_rng([zlib.crc32(split.encode()), seed])


def drawn_seed(rng: np.random.Generator) -> int:
    """A seed for an instance's luck."""
    return int(rng.integers(2**63))
