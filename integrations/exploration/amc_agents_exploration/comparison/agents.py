"""Exploring agents by name: classic algorithms, agents made of language models, and functions that return an agent."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.comparison.llm_agents import OPTIONS, llm_agent
from amc_agents_exploration.episodic import EpisodicAgent
from amc_agents_exploration.exact import (
    BayesOptimalLock,
    ClassicInformationDirected,
    ClassicPosteriorSampling,
    exact_model,
)
from amc_agents_exploration.worlds import CombinationLock


@dataclass(frozen=True, slots=True)
class Explorer:
    """An agent and the temperature of its exploring role. Plain values, so that it can be sent to worker processes."""

    agent: str
    """A name in `KNOWN`, a string that `bench.exploration.llm_agents` accepts, or `module:function` for a function
    (task, seed) -> EpisodicAgent."""
    temperature: float | None = None
    """None: the agent's own temperature, or none."""

    @property
    def name(self) -> str:
        """Name under which results store the trials."""
        return self.agent if self.temperature is None else f"{self.agent}, temperature {self.temperature:g}"

    def make(self, task: Task, seed: int, *, n_episodes: int, horizon: int) -> EpisodicAgent:
        """Return a fresh agent for one trial.

        Args:
            task: the first task of the trial. An agent must not use hidden parts of its payload.
            seed: seed for a user's function; other agents draw from the episode's generator only.
            n_episodes: K, for agents that plan for it.
            horizon: number of steps of an episode, for agents that look ahead.

        Raises:
            ConfigurationError: the agent is unknown, or cannot play this world.
        """
        if self.agent in KNOWN:
            return KNOWN[self.agent](task, n_episodes)
        if (spec := llm_agent(self.agent)) is not None:
            return spec.make(task, horizon, self.temperature)
        options = {} if self.temperature is None else {"temperature": self.temperature}
        agent: Any = _function(self.agent)(task, seed, **options)
        missing = [name for name in _METHODS if not callable(getattr(agent, name, None))]
        if missing:
            raise ConfigurationError(
                f"agent {quoted(self.agent)} returned a {type(agent).__name__} without {', '.join(missing)}: expected "
                "an EpisodicAgent (amc_agents_exploration.episodic)"
            )
        episodic_agent: EpisodicAgent = agent
        return episodic_agent


def explorers(agents: Sequence[str], temperatures: Sequence[float] = ()) -> tuple[Explorer, ...]:
    """Combine every agent with every temperature; an agent without a temperature appears once.

    Raises:
        ConfigurationError: an agent is unknown, or temperatures are given and no agent accepts them.
    """
    combined: list[Explorer] = []
    for agent in agents:
        swept: Sequence[float | None] = temperatures if temperatures and takes_temperature(agent) else (None,)
        combined += [Explorer(agent, temperature) for temperature in swept]
    if temperatures and all(explorer.temperature is None for explorer in combined):
        raise ConfigurationError(
            f"none of {', '.join(agents)} accepts a temperature: omit it, or name an agent whose function accepts it"
        )
    return tuple(combined)


def takes_temperature(agent: str) -> bool:
    """Return whether the agent has a temperature that can be set."""
    if agent in KNOWN:
        return False
    if (spec := llm_agent(agent)) is not None:
        return spec.takes_temperature
    return "temperature" in inspect.signature(_function(agent)).parameters


class RandomAgent:
    """Chooses every action with the same probability, so that its regret grows linearly."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Use the episode's random generator."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Draw an action."""
        actions = trajectory.task.payload.actions
        return Step(actions[int(self._rng.integers(len(actions)))])

    async def observe(self, trajectory: Trajectory) -> None:
        """Ignore the outcome."""

    async def end(self, trajectory: Trajectory) -> None:
        """Ignore the outcome."""


def _classic_ids(task: Task, n_episodes: int) -> EpisodicAgent:
    model: Any = exact_model(task)
    if not hasattr(model, "stakes"):
        raise ConfigurationError(
            f"classic-ids needs exact regret and information, which the model of {quoted(task.id)} does not compute: "
            "choose classic-psrl, or another world"
        )
    return ClassicInformationDirected(model)


def _bayes_optimal(task: Task, n_episodes: int) -> EpisodicAgent:
    if not isinstance(task.payload, CombinationLock):
        raise ConfigurationError(
            f"bayes-optimal plays only the combination lock, and {quoted(task.id)} is another world"
        )
    return BayesOptimalLock(n_episodes)


KNOWN: Mapping[str, Callable[[Task, int], EpisodicAgent]] = {
    "classic-psrl": lambda task, n_episodes: ClassicPosteriorSampling(exact_model(task)),
    "classic-ids": _classic_ids,
    "bayes-optimal": _bayes_optimal,
    "random": lambda task, n_episodes: RandomAgent(),
}
"""Name -> function (task, number of episodes) that returns an agent. Classic PSRL is Thompson sampling on a bandit."""
_METHODS = ("begin", "act", "observe", "end")


def _function(agent: str) -> Callable[..., Any]:
    module, colon, name = agent.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(
            f"no agent {quoted(agent)}; choose from: {', '.join(KNOWN)}; {', '.join(OPTIONS)} with a model, as in "
            "psrl:provider:model; or module:function, a function (task, seed) that returns an EpisodicAgent"
        )
    try:
        function: Any = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"agent {quoted(agent)}: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"agent {quoted(agent)}: {module} has no function {quoted(name)}")
    typed_function: Callable[..., Any] = function
    return typed_function
