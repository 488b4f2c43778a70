"""Select the critic of a run: the first place that names a critic wins.

    context -> configurable -> constructor -> AMC_CRITIC -> config file -> "uniform"

The last four are resolved when a graph is built, the first two at each call. A graph that offers critics by name
accepts only these names from a call, and a graph with `AllowedCritics` what that allow-list permits. A graph without
such an offer that runs on LangGraph's server accepts no critic string from a call.
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
from amc_agents.critics.allowed import AllowedCritics
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CriticSpecError
from amc_agents.quoting import listed, masked, quoted
from amc_agents.types import Critic

OfferedCritics = Mapping[str, str | CriticLike] | AllowedCritics
"""Critics that calls may name: name -> critic, or an allow-list."""
VARIABLE = "AMC_CRITIC"
"""Environment variable with the critic's string."""
MOST_KEPT = 16
"""Maximum number of critics named by calls that a graph caches."""


@dataclass(frozen=True)
class ChosenCritic:
    """A critic and its source."""

    critic: Critic
    name: str
    """Its string, the class of an object, or the name of a function."""
    source: str
    """The place that named it."""


class CriticChoice:
    """The critic of a graph, and the critics that its calls name.

    Args:
        critic: what the constructor was given, or None.
        config: the configuration file.
        fit: adapts a critic to the method, or raises `ConfigurationError`.
        offered: name -> critic, the choice of a call, or an allow-list; None: a call may name any critic that is
            allowed in calls. `critic` may be such a name too.

    Raises:
        ConfigurationError: a critic's string is invalid, or the critic does not fit.
    """

    def __init__(
        self,
        critic: str | CriticLike | None,
        config: Config,
        fit: Callable[[Critic], Critic],
        offered: OfferedCritics | None = None,
    ) -> None:
        self._fit = fit
        self._allowed = offered if isinstance(offered, AllowedCritics) else None
        names = offered.offered if isinstance(offered, AllowedCritics) else offered
        self._offered = None if names is None else {name: fit(parse_critic(offer)) for name, offer in names.items()}
        self._kept: dict[str, Critic] = {}
        self._loading = threading.Lock()
        named, source = self._named(critic, config)
        if isinstance(named, str) and self._offered is not None and named in self._offered:
            self.own = ChosenCritic(self._offered[named], named, source)
        else:
            # Constructor, environment and file are trusted: they may also name code.
            self.own = ChosenCritic(fit(parse_critic(named)), _name(named), source)

    async def for_call(self, critic: str | CriticLike | None, source: str) -> ChosenCritic:
        """Return the critic that a call names, or the graph's own; a call's string may not name code or files.

        Args:
            critic: the critic of the call, or None.
            source: the place that named it.

        Raises:
            ConfigurationError: the critic is not offered to calls, its string is invalid, or it does not fit.
        """
        if critic is None:
            return self.own
        if self._offered is not None and isinstance(critic, str) and critic in self._offered:
            return ChosenCritic(self._offered[critic], critic, source)
        self._refuse_unless_allowed(critic)
        if not isinstance(critic, str):
            return ChosenCritic(self._fit(parse_critic(critic)), _name(critic), source)
        kept = self._kept.get(critic)
        if kept is None:
            # Loading a critic would block the event loop.
            kept = await asyncio.to_thread(self._load, critic)
        return ChosenCritic(kept, _name(critic), source)

    def _refuse_unless_allowed(self, critic: str | CriticLike) -> None:
        """Refuse a critic that is not among the offered names, unless there is no offer or an allow-list decides."""
        if self._offered is None:
            if isinstance(critic, str) and _is_served():
                raise CriticSpecError(
                    f"the critic {quoted(critic)} was named by a call to a server, and this graph offers none: "
                    'build it with critics={"name": critic}, and let calls name one of these'
                )
        elif self._allowed is None or not isinstance(critic, str):
            came = quoted(critic) if isinstance(critic, str) else f"an object ({type(critic).__name__})"
            names = listed(self._offered) if self._allowed is None else self._allowed.described()
            raise CriticSpecError(f"a call chooses its critic among {names}, got {came}")

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
        with self._loading:  # Concurrent calls wait for the first call to load the critic.
            if spec not in self._kept:
                critic = self._fit(self._parse(spec))
                if len(self._kept) == MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[spec] = critic
            return self._kept[spec]

    def _parse(self, spec: str) -> Critic:
        return parse_critic(spec, trusted=False) if self._allowed is None else self._allowed.parse(spec)


def _name(critic: str | CriticLike) -> str:
    """Return the name for runs, records and traces."""
    return masked(critic) if isinstance(critic, str) else name_of(critic)


def _is_served() -> bool:
    """True if this call runs on LangGraph's server."""
    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):  # No graph is running.
        return False
    return runtime is not None and runtime.server_info is not None
