"""The settings of `amc()`: names, types, defaults, meanings and ranges, stated once.

The table `[amc]` of `amc_agents.config`, and the table of docs/configuration.md, derive from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, Literal, get_args

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.smc.adaptive import Adaptive
from amc_agents.smc.resampling import AtSteps, EssBelow, EveryStep, Never, Schedule, resolve_scheme
from amc_agents.types import Trajectory

Select = Literal["return", "value", "weight", "sample", "shortest", "longest", "vote"]
Finished = Literal["retire", "keep"]
OnCriticError = Literal["raise", "uniform"]
Emission = Literal["end", "settled", "all"]
Beta = float | Literal["auto"]
RewardSource = Literal["world", "function", "both"]
"""The rewards of the worlds, those of `reward=`, or their sum."""


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


def _setting(help: str, *, shown: str | None = None, page: str = "", reads: Any = None) -> dict[str, Any]:
    """Describe a setting that a configuration file may give.

    Args:
        help: what it means, as docs/configuration.md says it.
        shown: the default in words, where None stands for it.
        page: the place in docs/ that says more.
        reads: reads the form of the file; None: the file has the value itself.
    """
    return {"help": help, "shown": shown, "page": page, "reads": reads}


@dataclass(frozen=True, kw_only=True)
class AmcSettings:
    """The settings of `amc()`: those that it takes as arguments too, and all others.

    `amc(agent, settings=AmcSettings(run_timeout=60))` gives the others. An argument of `amc()` precedes a field of the
    same name; a field that has its default counts as not given, and may come from the configuration file.

    Raises:
        ConfigurationError: a value is out of range.
    """

    n_particles: int | Adaptive = field(
        default=15,
        metadata=_setting(
            'N, number of trajectories that run side by side; `"4..32"` starts with 4, adds more where the answer is '
            "undecided, up to 32, and ends when it is decided",
            page="amc.md#an-adaptive-number-of-particles",
            reads=size_of,
        ),
    )
    resample: Schedule = field(
        default=AtSteps(2, 4, 8, 16, 32),
        metadata=_setting(
            "when particles are weighed and resampled: `{ at_steps = [4, 8] }`, `{ ess_below = 0.5 }`, "
            '`"every_step"` or `"never"`',
            shown="`{ at_steps = [2, 4, 8, 16, 32] }`",
            reads=schedule_of,
        ),
    )
    scheme: str = field(
        default="systematic",
        metadata=_setting('resampling scheme: "systematic", "stratified", "residual" or "multinomial"'),
    )
    beta: Beta = field(
        default="auto",
        metadata=_setting(
            "temperature of the target pi* ~ pi exp(R / beta), in the agent's reward units; auto: the critic's own, if "
            "it has one, otherwise chosen at the first weighing that tells particles apart",
            page="amc.md#temperature",
        ),
    )
    success_reward: float | None = field(
        default=None,
        metadata=_setting(
            "the only possible return besides 0: the critic then predicts a probability of success, eq. 5 holds "
            "exactly, and small probabilities are weighed by their ratio",
            shown="none: any return is possible",
            page="amc.md",
        ),
    )
    select: Select | None = field(
        default=None,
        metadata=_setting(
            'criterion of the answer: the best "return", "value" or "weight", or a "sample" from the weighted '
            "particles",
            shown='"return" if rewards are observed, else "value"',
        ),
    )
    finished: Finished = field(
        default="retire",
        metadata=_setting(
            '"retire" takes finished particles out with their weight and gives their slots to live particles; "keep" '
            "resamples them with the others",
        ),
    )
    horizon: int = field(
        default=50, metadata=_setting("maximum number of steps of a particle; no future return is predicted there")
    )
    stop_at: float | None = field(
        default=None, metadata=_setting("return at which the run may end early", shown="never")
    )
    quorum: int | None = field(
        default=None, metadata=_setting("minimum number of particles that must not fail", shown="half of them")
    )
    step_timeout: float | None = field(
        default=None,
        metadata=_setting(
            "time limit in seconds for a particle's step (a particle that exceeds it has failed) and for a critic call",
            shown="no limit",
        ),
    )
    run_timeout: float | None = field(
        default=None,
        metadata=_setting(
            "time limit in seconds for the whole run: the best finished trajectory is then the answer, with a note and "
            "without log Z; without one, `RunTimedOut` is raised",
            shown="no limit",
        ),
    )
    durable_every: int | None = field(
        default=None,
        metadata=_setting(
            "maximum number of steps between two durable points, from which a run with a checkpointer goes on after a "
            "crash; particles wait for each other there, and the result does not change",
            shown="points only where particles are weighed",
        ),
    )
    seed: int | None = field(
        default=None,
        metadata=_setting(
            "seed of resampling, of worlds, and of models that draw from a particle's random stream",
            shown="drawn, and recorded",
        ),
    )
    emit: Emission = field(
        default="end",
        metadata=_setting(
            'when `stream_mode="messages"` shows the answer: at the "end"; "settled": each message as soon as every '
            'particle that can still become the answer shares it; "all": at the end, but `astream_events` shows the '
            "events of every particle as they happen",
            page="flow.md#the-answer-before-the-end",
        ),
    )
    on_critic_error: OnCriticError = "raise"
    """ "raise", or "uniform": keep the weights when the critic fails in any way, and add a note to the run. Values are
    NaN there; `select="value"` takes the best known value, or the largest weight if no value is known."""
    rewards: RewardSource | Literal[False] | None = None
    """Which rewards count if both `environment=` and `reward=` are given: "world", "function", or "both" for their sum.
    False: the worlds have no rewards. None: the only available source."""
    hide_rewards: bool = False
    """Run without reading rewards, so that the same selection is possible in production."""
    proposals: Sequence[Mapping[str, Any]] | None = None
    """Settings of the agent that differ between particles: values in its `configurable`, such as
    [{"temperature": 0.5}, {"temperature": 0.9}] for a model with a configurable temperature. Particle i begins with
    number i modulo their number, and its offspring keep it. The target's prior is then the mixture of the proposals.
    None: the particles do not differ."""
    features: Sequence[Callable[[], Any]] = ()
    """Further features of a run: each is called to make one, such as a subclass of `population.feature.Feature`."""
    trajectory: Callable[[Any], Trajectory] | None = None
    """Builds what the critic sees from an agent's state, for agents whose state has no `messages`."""
    config: Any = None
    """Path of the configuration file, or a `Config`; `Config()` is empty. None: the file named by AMC_CONFIG."""

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
        require_literal("on_critic_error", self.on_critic_error, OnCriticError)
        if not isinstance(self.resample, Schedule):
            raise ConfigurationError(
                f"resample must be a schedule such as AtSteps(4), EssBelow(0.5), EveryStep() or Never(), "
                f"got {quoted(self.resample)}"
            )
        resolve_scheme(self.scheme)

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(AmcSettings)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def start_size(self) -> int:
        """Number of particles at the start."""
        return self.n_particles.start if isinstance(self.n_particles, Adaptive) else self.n_particles

    @property
    def largest_size(self) -> int:
        """Maximum number of particles that run side by side."""
        return self.n_particles.most if isinstance(self.n_particles, Adaptive) else self.n_particles


FILE_FIELDS = {field.name: field for field in fields(AmcSettings) if field.metadata}
"""The settings that a configuration file may give in its table `[amc]`."""
DEFAULTS = ", ".join(f"{name}={field.default!r}" for name, field in FILE_FIELDS.items())
"""Their defaults as text, for the docstring of `amc`."""


def table() -> str:
    """Return the rows of these settings in the table of docs/configuration.md."""
    return "".join(map(_row, FILE_FIELDS.values()))


def _row(setting: Any) -> str:
    facts, default = setting.metadata, setting.default
    shown = facts["shown"] or (f'`"{default}"`' if isinstance(default, str) else f"`{default}`")
    link = f" ([more]({facts['page']}))" if facts["page"] else ""
    return f"| `{setting.name}` | {facts['help']}{link} | {shown} |\n"


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
