"""The settings of a run, checked once: what the code says, else what the configuration file says, else defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amc_agents.config import Config, Finished, OnCriticError, Select
from amc_agents.errors import ConfigurationError
from amc_agents.population.rewards import RewardSource
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never, Schedule
from amc_agents.smc.resampling import resolve_scheme


@dataclass(frozen=True)
class Settings:
    """How a population is run. The defaults are those of `amc`."""

    n_particles: int = 15
    resample: Schedule = AtSteps(4)
    scheme: str = "systematic"
    beta: float = 1.0
    """Temperature of the target pi* ~ pi exp(R / beta), in the agent's reward units (AMC eq. 2)."""
    success_reward: float | None = None
    """The one return besides 0, where there is no other (`smc.potentials`); None: any may come."""
    select: Select | None = None
    """How the answer is picked; None: "return" where rewards are seen, else "value"."""
    finished: Finished = "retire"
    horizon: int = 50
    stop_at: float | None = None
    quorum: int | None = None
    """Least number of particles that must not have failed; None: half of them."""
    step_timeout: float | None = None
    """Most seconds of one particle's step, and of one call of the critic; None: no limit."""
    run_timeout: float | None = None
    """Most seconds of the whole run; None: no limit."""
    seed: int | None = None
    on_critic_error: OnCriticError = "raise"
    rewards: RewardSource | None = "world"
    """Where they come from; None: there are none."""
    hide_rewards: bool = False
    """The run may not look at them."""
    critic: str = "uniform"
    """Name of the critic: its string, the class of an object, or the name of a function."""
    critic_from: str = "default"
    """Where it was named: "context", "configurable", "constructor", "AMC_CRITIC", the config file, or "default"."""

    @classmethod
    def chosen(cls, config: Config, said: Mapping[str, Any], **fixed: Any) -> Settings:
        """What the code says, over what the configuration file says, over the defaults.

        Args:
            config: the file.
            said: arguments of `amc`; None is one that was not given.
            fixed: settings that a file cannot say.
        """
        from_file = config.amc.model_dump(exclude_none=True)
        if config.on_critic_error is not None:
            from_file["on_critic_error"] = config.on_critic_error
        if "resample" in from_file:
            from_file["resample"] = schedule_of(from_file["resample"])
        given = {name: value for name, value in said.items() if value is not None}
        try:
            return cls(**{**from_file, **given, **fixed})
        except ConfigurationError as error:
            taken = [name for name in from_file if name not in given]
            if not taken:
                raise
            raise ConfigurationError(f"{error} ({', '.join(taken)}: from the {config.name})") from error

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.n_particles < 1:
            raise ConfigurationError(f"n_particles must be at least 1, got {self.n_particles}")
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise ConfigurationError(f"beta must be a positive number, got {self.beta}")
        if self.success_reward is not None and not (self.success_reward > 0 and math.isfinite(self.success_reward)):
            raise ConfigurationError(
                f"success_reward must be a positive number, the one return besides 0, got {self.success_reward}"
            )
        if self.horizon < 1:
            raise ConfigurationError(f"horizon must be at least 1 step, got {self.horizon}")
        if self.quorum is not None and not 1 <= self.quorum <= self.n_particles:
            raise ConfigurationError(f"quorum must lie in 1..n_particles={self.n_particles}, got {self.quorum}")
        for name, limit in (("step_timeout", self.step_timeout), ("run_timeout", self.run_timeout)):
            if limit is not None and not (limit > 0 and math.isfinite(limit)):
                raise ConfigurationError(f"{name} must be a positive number of seconds, got {limit}")
        _one_of("select", self.select, (None, "return", "value", "weight", "sample"))
        _one_of("finished", self.finished, ("retire", "keep"))
        _one_of("on_critic_error", self.on_critic_error, ("raise", "uniform"))
        if not isinstance(self.resample, Schedule):
            raise ConfigurationError(
                f"resample must be a schedule such as AtSteps(4), EssBelow(0.5), EveryStep() or Never(), "
                f"got {self.resample!r}"
            )
        resolve_scheme(self.scheme)
        if not self.rewards_observed:
            if self.select == "return":
                raise ConfigurationError(
                    'select="return" needs rewards, and this run sees none: give environment= or reward=, '
                    'or select="value"'
                )
            if self.stop_at is not None:
                raise ConfigurationError("stop_at is a return, and this run sees no rewards: leave it out")

    def require_source_of_weights(self) -> None:
        """Refuse a run that has neither a critic nor rewards, unless `uniform` was asked for by name.

        Raises:
            ConfigurationError: every particle would weigh the same, and the first would be returned.
        """
        if self.critic_from == "default" and not self.rewards_observed:
            raise ConfigurationError(
                f"nobody named a critic and the run sees no rewards: all {self.n_particles} particles would weigh the "
                "same, and the first would be returned. Name a critic (critic=, AMC_CRITIC, the config file, or "
                'context={"critic": ...} of a call), give rewards by environment= or reward=, or say critic="uniform" '
                "to run without either"
            )

    @property
    def rewards_observed(self) -> bool:
        """False where there are none, or where the run may not look at them."""
        return self.rewards is not None and not self.hide_rewards

    @property
    def may_ask_critic(self) -> bool:
        """Particles are weighed before their end, where f is the critic's; or no rewards are seen, and all is."""
        first = self.resample.next_point(0)
        before_end = first is not None and first < self.horizon
        return before_end or not self.rewards_observed or self.stop_at is not None

    @property
    def least_alive(self) -> int:
        """The quorum as a number."""
        return math.ceil(self.n_particles / 2) if self.quorum is None else self.quorum

    @property
    def pick(self) -> Select:
        """How the answer is picked."""
        return self.select or ("return" if self.rewards_observed else "value")

    def as_plain(self) -> dict[str, Any]:
        """The settings as plain values, for a report."""
        return {
            "n_particles": self.n_particles,
            "resample": repr(self.resample),
            "scheme": self.scheme,
            "beta": self.beta,
            "success_reward": self.success_reward,
            "select": self.pick,
            "finished": self.finished,
            "horizon": self.horizon,
            "stop_at": self.stop_at,
            "quorum": self.least_alive,
            "step_timeout": self.step_timeout,
            "run_timeout": self.run_timeout,
            "on_critic_error": self.on_critic_error,
            "rewards": self.rewards,
            "rewards_observed": self.rewards_observed,
            "critic": self.critic,
            "critic_from": self.critic_from,
        }


def schedule_of(plain: Any) -> Schedule:
    """The schedule that a configuration file names: {at_steps = [4, 8]}, {ess_below = 0.5}, "every_step", "never"."""
    match plain:
        case {"at_steps": steps}:
            return AtSteps(*steps)
        case {"ess_below": share}:
            return EssBelow(share)
        case "every_step":
            return EveryStep()
        case "never":
            return Never()
    raise ConfigurationError(f"no schedule is called {plain!r}")


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
