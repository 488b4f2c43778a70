"""The settings of a race: `Race` and `EarlyStop`. `features/race.py` runs it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.settings import AmcSettings
from amc_agents.smc import Adaptive, Never
from amc_agents.types import Trajectory

By = Literal["clock", "steps", "tokens"]


@dataclass(frozen=True)
class EarlyStop:
    """Stop particles that the run's critic values below a threshold after a number of steps: `Race(stop=...)`.

    `amc advise` chooses both on your logs. Each particle is judged once.

    Raises:
        ConfigurationError: a number is out of range.
    """

    at_step: int
    """Number of steps after which a particle is judged."""
    below: float
    """The least value, in reward units, with which a particle may go on."""
    restarts: int = 0
    """0: a stopped particle is lost; if all are, the run has no answer (`PopulationError`). Above: it begins anew from
    the agent's input, so often in all particles together; after that, none is stopped. A budget counts all attempts."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.at_step < 1 or self.restarts < 0 or math.isnan(self.below):
            raise ConfigurationError(
                f"expected EarlyStop with at_step of at least 1, a number below and restarts of at least 0, got {self}"
            )


@dataclass(frozen=True)
class Race:
    """`amc(agent, race=Race())`: N particles run freely, and the first to finish is the answer.

    It costs less than N runs and less time than one: on 445 public runs of a coding agent, five a task, 3.7 runs' cost
    and 0.74 of the time of a run, for .910 instead of .787 of the tasks. On other agents it is worse than a single run:
    ask your logs (`amc advise`).

    Raises:
        ConfigurationError: a setting is out of range.
    """

    accept: Callable[[Trajectory], bool | Awaitable[bool]] | float | None = None
    """Which finished trajectories may be the answer: a function, such as one that runs tests in
    `current_environment()` (async, or sync and then called in a thread), or the least value by the run's critic. A
    trajectory that waits before a commit call is judged before the call. The race goes on until enough are accepted; if
    too few are, all particles end, and the answer is an accepted one, or else `select` chooses. None: every one may."""
    finish: int = 1
    """Number of accepted particles that end the race; `select` chooses among them."""
    by: By = "clock"
    """What "first" means. By "steps" or "tokens", the particles with the fewest win, once no other can undercut them;
    tokens are those of the particle's own requests, which its models must report."""
    stop: EarlyStop | None = None
    """Stops hopeless particles early."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.finish < 1:
            raise ConfigurationError(f"finish must be at least 1, got {self.finish}")
        if self.by not in get_args(By):
            raise ConfigurationError(f"by must be one of {', '.join(get_args(By))}, got {quoted(self.by)}")
        if not isinstance(self.stop, EarlyStop | None):
            raise ConfigurationError(
                f"stop must be an EarlyStop such as EarlyStop(at_step=20, below=0.3), got {quoted(self.stop)}"
            )
        if not (self.accept is None or callable(self.accept) or isinstance(self.accept, int | float)):
            raise ConfigurationError(f"accept must be a function or a number, got {quoted(self.accept)}")

    @property
    def asks_critic(self) -> bool:
        """Whether the run's critic judges particles."""
        return self.stop is not None or isinstance(self.accept, int | float)

    def check(self, settings: AmcSettings) -> None:
        """Check the settings of a run.

        Raises:
            ConfigurationError: they exclude a race.
        """
        if isinstance(settings.n_particles, Adaptive):
            raise ConfigurationError("a race needs a fixed number of particles: give n_particles=5 instead of Adaptive")
        if self.finish > settings.n_particles:
            raise ConfigurationError(f"finish={self.finish} takes as many particles, got {settings.n_particles}")
        if settings.resample != Never() and (self.by != "clock" or self.stop is not None):
            raise ConfigurationError(
                f'a race by="{self.by}" or with an early stop judges particles from their beginnings on, and '
                "resampling would replace these: omit resample="
            )

    def as_plain(self) -> dict[str, Any]:
        """Return the settings as plain values for a report."""
        accept = getattr(self.accept, "__name__", "function") if callable(self.accept) else self.accept
        stop = None if self.stop is None else dict(vars(self.stop))
        return {"by": self.by, "finish": self.finish, "accept": accept, "stop": stop}
