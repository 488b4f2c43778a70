"""Worlds for efficient exploration (LLM-PSRL, section 5): a hidden instance played over many episodes.

An instance holds the facts that are constant over all episodes and that the agent must discover: the means of arms, the
code of a lock, the currents of a river. Random outcomes are drawn independently in each episode.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amc_agents.errors import EnvironmentStateError
from amc_agents.quoting import quoted
from amc_agents.types import Task, TimeStep, Trajectory


@dataclass(frozen=True, kw_only=True)
class Instance(ABC):
    """A hidden world and the index of an episode, as the payload of a `Task`. Its methods are pure functions."""

    seed: int
    """Seed for all episodes."""
    episode: int = 0
    """Index of this episode, from 0."""

    @property
    @abstractmethod
    def optimal_value(self) -> float:
        """V*(s_1), the exact expected return of an episode under the optimal policy for the known instance."""

    @property
    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """Actions in every state, in the order of the instruction."""

    @abstractmethod
    def start(self) -> Any:
        """Return the initial state. States are immutable."""

    @abstractmethod
    def advance(self, state: Any, action: str, rng: np.random.Generator) -> tuple[Any, TimeStep]:
        """Return the next state and its time step. An action outside `actions` wastes the turn."""

    @abstractmethod
    def regret(self, trajectory: Trajectory) -> float:
        """Return the regret of the trajectory's steps: the sum of V*_h(s_h) - Q*_h(s_h, a_h).

        Its expectation over an episode is V*(s_1) - V^pi(s_1), the paper's regret of the episode. Its variance is lower
        than that of V*(s_1) - return.
        """


class ExplorationWorld:
    """An environment for one episode of any `Instance`. A fork copies the state and draws from its own seed."""

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
                f"(task {quoted(task.id)}): make tasks with amc_agents_exploration.worlds"
            )
        self._instance, self._done = task.payload, False
        self._state = self._instance.start()
        self._rng = np.random.default_rng([self._instance.seed, self._instance.episode])
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        """Take one of the instance's actions. Any other text wastes a turn."""
        if self._instance is None or self._done:
            when = "before reset" if self._instance is None else "after the episode's end"
            raise EnvironmentStateError(f"ExplorationWorld.step was called {when}: call reset(task) first")
        self._state, answer = self._instance.advance(self._state, action.strip(), self._rng)
        self._done = answer.done
        return answer

    async def fork(self, seed: int) -> ExplorationWorld:
        """Return an independent world in the same state that draws from `seed`."""
        copy = ExplorationWorld()
        copy._instance, copy._state, copy._done = self._instance, self._state, self._done
        copy._rng = np.random.default_rng([abs(seed), int(seed < 0)])
        return copy

    async def close(self) -> None:
        """Do nothing: the world holds no resources."""


def episodes(task: Task, n_episodes: int, *, first: int = 0) -> Iterator[Task]:
    """Yield the episodes of one trial: the same hidden instance, with independent random outcomes.

    Args:
        task: any task of an exploration world.
        n_episodes: number of episodes (K in the paper).
        first: index of the first episode, for resuming a trial.
    """
    for number in range(first, first + n_episodes):
        payload = replace(task.payload, episode=number)
        yield replace(task, id=f"{task.id}/episode/{number}", payload=payload)


def task_rng(split: str, seed: int) -> np.random.Generator:
    """Return the generator for a task's instance. Splits are separate streams."""
    return np.random.default_rng([zlib.crc32(split.encode()), seed])


def drawn_seed(rng: np.random.Generator) -> int:
    """Draw a seed for an instance."""
    return int(rng.integers(2**63))
