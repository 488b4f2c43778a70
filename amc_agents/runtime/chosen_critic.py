"""Which critic a run uses: the order in which one is looked for, and what calls have named so far.

    context -> configurable -> constructor -> AMC_CRITIC -> config file -> "uniform"

The last four are settled where a graph is built, the first two at each call. A graph that offers its calls some critics
by name takes no others; one that offers none and is served by LangGraph's server takes no critic's string from a call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from langgraph.runtime import get_runtime

from amc_agents.config import Config
from amc_agents.critics.adapting import CriticLike, name_of
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CriticSpecError
from amc_agents.quoting import listed, masked, quoted
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
        offered: the critics that a call may choose among, by the names that it chooses them by; None: it may name any
            that a call may name. `critic` may be one of these names, too.

    Raises:
        ConfigurationError: a critic was not understood, or does not fit.
    """

    def __init__(
        self,
        critic: str | CriticLike | None,
        config: Config,
        fit: Callable[[Critic], Critic],
        offered: Mapping[str, str | CriticLike] | None = None,
    ) -> None:
        self._fit = fit
        self._offered = None if offered is None else {name: fit(parse_critic(one)) for name, one in offered.items()}
        self._kept: dict[str, Critic] = {}
        self._loading = threading.Lock()
        named, source = self._named(critic, config)
        if isinstance(named, str) and self._offered is not None and named in self._offered:
            self.own = ChosenCritic(self._offered[named], named, source)
        else:
            # Whoever builds the graph, sets its environment or writes its file may also name code.
            self.own = ChosenCritic(fit(parse_critic(named)), _name(named), source)

    async def for_call(self, critic: str | CriticLike | None, source: str) -> ChosenCritic:
        """The critic that a call names, or the graph's own; a string of a call may not name code or files.

        Raises:
            ConfigurationError: the critic is not offered to calls, was not understood, or does not fit.
        """
        if critic is None:
            return self.own
        if self._offered is not None:
            if isinstance(critic, str) and critic in self._offered:
                return ChosenCritic(self._offered[critic], critic, source)
            came = quoted(critic, 80) if isinstance(critic, str) else f"an object ({type(critic).__name__})"
            raise CriticSpecError(f"a call chooses its critic among {listed(self._offered)}, got {came}")
        if isinstance(critic, str) and _is_served():
            raise CriticSpecError(
                f"the critic {quoted(critic, 80)} was named by a call to a server, and this graph offers none: build "
                'it with critics={"name": critic}, and let calls name one of these'
            )
        if not isinstance(critic, str):
            return ChosenCritic(self._fit(parse_critic(critic)), _name(critic), source)
        kept = self._kept.get(critic)
        if kept is None:
            # Reading what a string names is not for the event loop.
            kept = await asyncio.to_thread(self._load, critic)
        return ChosenCritic(kept, _name(critic), source)

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
    """As runs, records and traces show it."""
    return masked(critic) if isinstance(critic, str) else name_of(critic)


def _is_served() -> bool:
    """Whether LangGraph's server makes this call for somebody."""
    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):  # no graph is running
        return False
    return runtime is not None and runtime.server_info is not None
