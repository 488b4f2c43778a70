"""The settings of `amc()` that code or a configuration file may give: names, types, defaults and ranges, stated once.

The table `[amc]` of `amc_agents.config`, the arguments of `amc()` and the settings of the bench derive from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, get_args

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.smc.adaptive import Adaptive
from amc_agents.smc.resampling import AtSteps, EssBelow, EveryStep, Never, Schedule, resolve_scheme

Select = Literal["return", "value", "weight", "sample"]
Finished = Literal["retire", "keep"]
OnCriticError = Literal["raise", "uniform"]
Emission = Literal["end", "settled", "all"]
Beta = float | Literal["auto"]


@dataclass(frozen=True)
class AmcSettings:
    """Settings of a population.

    Raises:
        ConfigurationError: a value is out of range.
    """

    n_particles: int | Adaptive = 15
    """N, number of trajectories that run side by side; `Adaptive(...)`: a number that follows the task's difficulty."""
    resample: Schedule = AtSteps(2, 4, 8, 16, 32)
    """When particles are weighed and resampled."""
    scheme: str = "systematic"
    """Resampling scheme, a key of `amc_agents.smc.resampling.SCHEMES`."""
    beta: Beta = "auto"
    """Temperature of the target pi* ~ pi exp(R / beta), in the agent's reward units (AMC eq. 2); "auto": the critic's
    own, if it has one, else chosen at the first weighing that tells particles apart (`smc.halving_beta`)."""
    success_reward: float | None = None
    """The only return besides 0 (`amc_agents.smc.weights`); None: any return is possible."""
    select: Select | None = None
    """Criterion by which the answer is picked; None: "return" if rewards are observed, else "value"."""
    finished: Finished = "retire"
    """"retire": finished particles are set aside with their weight; "keep": they stay in the resampling."""
    horizon: int = 50
    """Maximum number of steps of a particle."""
    stop_at: float | None = None
    """Return at which the run may end early; None: never."""
    quorum: int | None = None
    """Minimum number of particles that must not fail; None: half of them, rounded up."""
    step_timeout: float | None = None
    """Time limit in seconds for a particle's step and for a critic call; None: no limit."""
    run_timeout: float | None = None
    """Time limit in seconds for the whole run; None: no limit."""
    durable_every: int | None = None
    """Maximum number of steps between two durable points; None: points only where particles are weighed."""
    seed: int | None = None
    """Seed of resampling and worlds; None: drawn, and recorded in the run."""
    emit: Emission = "end"
    """When messages are streamed: at the run's end, or "settled": as soon as all candidates for the answer agree.
    "all": as "end", but `astream_events` shows the events of every particle as they happen."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _require_at_least(
            1,
            n_particles=self.start_size,
            horizon=self.horizon,
            quorum=self.quorum,
            durable_every=self.durable_every,
        )
        _require_at_least(0, seed=self.seed)
        beta = None if self.beta == "auto" else self.beta
        if isinstance(beta, str):
            raise ConfigurationError(f'beta must be a positive number or "auto", got {quoted(beta)}')
        _require_positive("a positive number", beta=beta, success_reward=self.success_reward)
        _require_positive("a positive number of seconds", step_timeout=self.step_timeout, run_timeout=self.run_timeout)
        require_literal("select", self.select, Select, None)
        require_literal("finished", self.finished, Finished)
        require_literal("emit", self.emit, Emission)
        if not isinstance(self.resample, Schedule):
            raise ConfigurationError(
                f"resample must be a schedule such as AtSteps(4), EssBelow(0.5), EveryStep() or Never(), "
                f"got {quoted(self.resample)}"
            )
        resolve_scheme(self.scheme)

    @property
    def start_size(self) -> int:
        """Number of particles at the start."""
        return self.n_particles.start if isinstance(self.n_particles, Adaptive) else self.n_particles

    @property
    def largest_size(self) -> int:
        """Maximum number of particles that run side by side."""
        return self.n_particles.most if isinstance(self.n_particles, Adaptive) else self.n_particles


SETTING_NAMES = tuple(field.name for field in fields(AmcSettings))
DEFAULTS = ", ".join(f"{field.name}={field.default!r}" for field in fields(AmcSettings))
"""The defaults as text, for the docstring of `amc`."""


def size_of(plain: Any) -> int | Adaptive:
    """Read the number of particles that a configuration file or a command line names.

    Args:
        plain: a whole number, or "start..most" such as "4..32".

    Raises:
        ConfigurationError: `plain` has another form.
    """
    if isinstance(plain, str):
        return Adaptive.parse(plain)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise ConfigurationError(
            f'expected a number of particles, or "start..most" such as "4..32", got {quoted(plain)}'
        )
    return plain


def schedule_of(plain: Any) -> Schedule:
    """Build the schedule that a configuration file names.

    Args:
        plain: {at_steps = [4, 8]}, {ess_below = 0.5}, "every_step" or "never".

    Raises:
        ConfigurationError: `plain` has another form.
    """
    match plain:
        case "every_step":
            return EveryStep()
        case "never":
            return Never()
        case {"at_steps": list(steps)} if len(plain) == 1:
            return AtSteps(*steps)
        case {"ess_below": int() | float() as share} if len(plain) == 1 and not isinstance(share, bool):
            return EssBelow(share)
    raise ConfigurationError(f"expected a schedule, got {quoted(plain)}")


def require_literal(name: str, value: Any, literal: Any, *others: Any) -> None:
    """Raise `ConfigurationError` unless the value is one of a `Literal` type's or one of the others."""
    allowed = (*others, *get_args(literal))
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {quoted(value)}")


def _require_at_least(minimum: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and not isinstance(value, Integral):
            raise ConfigurationError(f"{name} must be a whole number, got {quoted(value)}")
        if value is not None and value < minimum:
            raise ConfigurationError(f"{name} must be at least {minimum}, got {value}")


def _require_positive(expected: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigurationError(f"{name} must be {expected}, got {value}")
