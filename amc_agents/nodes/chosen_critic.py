"""Which critic a run uses: the order in which one is looked for, and what calls have named so far.

    context -> configurable -> constructor -> AMC_CRITIC -> config file -> "uniform"

The last four are settled where a graph is built, the first two at each call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from amc_agents.config import Config
from amc_agents.critics.adapting import CriticLike, name_of
from amc_agents.critics.spec import parse_critic
from amc_agents.types import Critic

VARIABLE = "AMC_CRITIC"
"""Environment variable that names the critic."""
MOST_KEPT = 16
"""Critics of calls that a graph keeps, so that thousands of calls load each of them once."""


@dataclass(frozen=True)
class ChosenCritic:
    """A critic, and how it came to be used."""

    critic: Critic
    name: str
    """Its string, the class of an object, or the name of a function."""
    source: str
    """Who named it."""


class CriticChoice:
    """The critic of a graph, and those that its calls name.

    Args:
        critic: what the constructor was given, or None.
        config: the configuration file.
        fit: makes of any kind of critic one that the method takes, or refuses it.

    Raises:
        ConfigurationError: the critic was not understood, or does not fit.
    """

    def __init__(self, critic: str | CriticLike | None, config: Config, fit: Callable[[Critic], Critic]) -> None:
        self._fit = fit
        self._kept: dict[str, Critic] = {}
        self._loading = threading.Lock()
        named, source = self._named(critic, config)
        # Whoever builds the graph, sets its environment or writes its file may also name code.
        self.own = ChosenCritic(fit(parse_critic(named)), _name(named), source)

    async def for_call(self, critic: str | CriticLike | None, source: str) -> ChosenCritic:
        """The critic that a call names, or the graph's own; a string of a call may not name code.

        Raises:
            ConfigurationError: the critic was not understood, or does not fit.
        """
        if critic is None:
            return self.own
        if not isinstance(critic, str):
            return ChosenCritic(self._fit(parse_critic(critic)), _name(critic), source)
        kept = self._kept.get(critic)
        if kept is None:
            # Reading what a string names is not for the event loop.
            kept = await asyncio.to_thread(self._load, critic)
        return ChosenCritic(kept, critic, source)

    @staticmethod
    def _named(critic: str | CriticLike | None, config: Config) -> tuple[str | CriticLike, str]:
        if critic is not None:
            return critic, "constructor"
        if os.environ.get(VARIABLE):
            return os.environ[VARIABLE], VARIABLE
        if config.critic is not None:
            return config.critic, config.name
        return "uniform", "default"

    def _load(self, spec: str) -> Critic:
        with self._loading:  # Calls at the same time wait for the first one's critic.
            if spec not in self._kept:
                critic = self._fit(parse_critic(spec, trusted=False))
                if len(self._kept) == MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[spec] = critic
            return self._kept[spec]


def _name(critic: str | CriticLike) -> str:
    return critic if isinstance(critic, str) else name_of(critic)
