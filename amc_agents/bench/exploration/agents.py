"""Agents that explore, by name: classic ones, those made of language models, and any function that makes one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_agents.bench.exploration.llm_agents import OPTIONS, llm_agent
from amc_agents.envs.exploration import CombinationLock
from amc_agents.errors import ConfigurationError
from amc_agents.psrl.episodes import EpisodicAgent
from amc_agents.psrl.exact import (
    BayesOptimalLock,
    ClassicInformationDirected,
    ClassicPosteriorSampling,
    exact_model,
)
from amc_agents.types import Step, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Explorer:
    """An agent and, where it has a sampler with one, a temperature: a worker process is given this."""

    agent: str
    """A name in `KNOWN`, a string of `bench.exploration.llm_agents`, or `module:function`, a function
    (task, seed) -> EpisodicAgent."""
    temperature: float | None = None
    """Of the sampler; None: the agent's own, or it has none."""

    @property
    def name(self) -> str:
        """What its trials are kept under."""
        return self.agent if self.temperature is None else f"{self.agent}, temperature {self.temperature:g}"

    def make(self, task: Task, seed: int, *, n_episodes: int, horizon: int) -> EpisodicAgent:
        """A fresh agent for one trial.

        Args:
            task: the first of the trial; of its payload an honest agent uses what the instruction tells.
            seed: of luck that does not come from the episode's generator, for a function of one's own.
            n_episodes: K, for those that plan for it.
            horizon: steps of an episode, for those that look ahead.

        Raises:
            ConfigurationError: no such agent, or it does not play this world.
        """
        if self.agent in KNOWN:
            return KNOWN[self.agent](task, n_episodes)
        if (of_models := llm_agent(self.agent)) is not None:
            return of_models.make(task, horizon, self.temperature)
        options = {} if self.temperature is None else {"temperature": self.temperature}
        made: Any = _function(self.agent)(task, seed, **options)
        missing = [name for name in _METHODS if not callable(getattr(made, name, None))]
        if missing:
            raise ConfigurationError(
                f"agent {self.agent!r} made a {type(made).__name__}, which has no {', '.join(missing)}: expected an "
                "EpisodicAgent (amc_agents.psrl.episodes)"
            )
        agent: EpisodicAgent = made
        return agent


def explorers(agents: Sequence[str], temperatures: Sequence[float] = ()) -> tuple[Explorer, ...]:
    """Every agent at every temperature, those whose sampler has none once.

    Raises:
        ConfigurationError: no such agent; or temperatures, and no agent that takes one.
    """
    found: list[Explorer] = []
    for agent in agents:
        swept: Sequence[float | None] = temperatures if temperatures and takes_temperature(agent) else (None,)
        found += [Explorer(agent, temperature) for temperature in swept]
    if temperatures and all(one.temperature is None for one in found):
        raise ConfigurationError(
            f"none of {', '.join(agents)} has a temperature: leave it out, or name an agent whose function takes one"
        )
    return tuple(found)


def takes_temperature(agent: str) -> bool:
    """Whether the agent's sampler has a temperature that can be set."""
    if agent in KNOWN:
        return False
    if (of_models := llm_agent(agent)) is not None:
        return of_models.takes_temperature
    return "temperature" in inspect.signature(_function(agent)).parameters


class RandomAgent:
    """Every action is equally likely, whatever was seen: its regret grows linearly."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Take the episode's luck."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Any action."""
        actions = trajectory.task.payload.actions
        return Step(actions[int(self._rng.integers(len(actions)))])

    async def observe(self, trajectory: Trajectory) -> None:
        """Nothing is learnt."""

    async def end(self, trajectory: Trajectory) -> None:
        """Nothing is learnt."""


def _classic_ids(task: Task, n_episodes: int) -> EpisodicAgent:
    model: Any = exact_model(task)
    if not hasattr(model, "stakes"):
        raise ConfigurationError(
            f"classic-ids needs exact regret and information, which the model of {task.id!r} does not compute: choose "
            "classic-psrl, or another world"
        )
    return ClassicInformationDirected(model)


def _bayes_optimal(task: Task, n_episodes: int) -> EpisodicAgent:
    if not isinstance(task.payload, CombinationLock):
        raise ConfigurationError(f"bayes-optimal plays the combination lock alone, and {task.id!r} is another world")
    return BayesOptimalLock(n_episodes)


KNOWN: Mapping[str, Callable[[Task, int], EpisodicAgent]] = {
    "classic-psrl": lambda task, n_episodes: ClassicPosteriorSampling(exact_model(task)),
    "classic-ids": _classic_ids,
    "bayes-optimal": _bayes_optimal,
    "random": lambda task, n_episodes: RandomAgent(),
}
"""(task, number of episodes) -> an agent. Classic PSRL is Thompson sampling on a bandit."""
_METHODS = ("begin", "act", "observe", "end")


def _function(agent: str) -> Callable[..., Any]:
    module, colon, name = agent.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(
            f"no agent {agent!r}; there are: {', '.join(KNOWN)}; {', '.join(OPTIONS)} with a model, as in "
            "psrl:provider:model; and module:function for your own, a function (task, seed) -> EpisodicAgent"
        )
    try:
        found: Any = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"agent {agent!r}: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"agent {agent!r}: {module} has no function {name!r}")
    function: Callable[..., Any] = found
    return function
