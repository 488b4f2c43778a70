"""The settings of a run, resolved from the arguments of `amc()`, the configuration file and the defaults."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from amc_agents.budget import Budget
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError
from amc_agents.population.particle import State, TrajectoryFunction
from amc_agents.prices import Rates
from amc_agents.quoting import quoted
from amc_agents.runtime import contract
from amc_agents.runtime.calls import CriticChoice
from amc_agents.settings import FILE_FIELDS, AmcSettings, RewardSource, Select
from amc_agents.smc import Adaptive, Never

if TYPE_CHECKING:
    from amc_agents.population.race_settings import Race

RewardFunction = Callable[[State], float | Awaitable[float]]
"""Computes the return so far from the agent's state."""
Proposal = Mapping[str, Any]
"""Values in the `configurable` of a particle's agent, such as {"temperature": 0.9}."""

_RESERVED = ("thread_id", "critic", "checkpoint", "amc_", "__pregel")


def reward_source(
    given: RewardSource | Literal[False] | None, *, has_world: bool, has_function: bool
) -> RewardSource | None:
    """Return the source of the rewards; None: the run has no rewards.

    Args:
        given: `rewards=` of `amc`; None: the only available source.
        has_world: whether the agent acts in worlds.
        has_function: whether `reward=` is given.

    Raises:
        ConfigurationError: two sources are available and `given` names none, or the named source is missing.
    """
    if given is None:
        if has_world and has_function:
            raise ConfigurationError(
                'environment= and reward= can both give rewards: choose rewards="world", "function" or "both" (sum)'
            )
        return "world" if has_world else "function" if has_function else None
    if given is not False and given not in get_args(RewardSource):
        raise ConfigurationError(f'rewards must be "world", "function", "both" or False, got {quoted(given)}')
    if given is False:
        if has_function:
            raise ConfigurationError("rewards=False means that the run has no rewards: omit reward=")
        return None
    if given != "function" and not has_world:
        raise ConfigurationError(f'rewards="{given}" needs worlds with rewards: give environment=')
    if given != "world" and not has_function:
        raise ConfigurationError(f'rewards="{given}" needs a function of the state: give reward=')
    return given


def checked_proposals(proposals: Sequence[Proposal] | None, n_particles: int) -> tuple[Proposal, ...]:
    """Check proposals, and copy them.

    Args:
        proposals: what `amc` was given; None: the particles do not differ.
        n_particles: N, at the start of a run.

    Raises:
        ConfigurationError: there are none, or more than particles, or one has another form or a reserved key.
    """
    if proposals is None:
        return ()
    if not isinstance(proposals, Sequence) or not all(isinstance(proposal, Mapping) for proposal in proposals):
        raise ConfigurationError(
            f'proposals must be a list of mappings, such as [{{"temperature": 0.5}}, ...], got {quoted(proposals, 100)}'
        )
    if not 1 <= len(proposals) <= n_particles:
        raise ConfigurationError(
            f"expected 1 to n_particles={n_particles} proposals, one or more particles for each, got {len(proposals)}"
        )
    for key in (key for proposal in proposals for key in proposal):
        if not isinstance(key, str) or key.startswith(_RESERVED):
            raise ConfigurationError(
                f"the key {quoted(key)} of a proposal is reserved, or no string: use keys that the agent reads from "
                "its `configurable`"
            )
    return tuple(dict(proposal) for proposal in proposals)


@dataclass(frozen=True)
class Settings(AmcSettings):
    """How a population is run: the settings of `amc()`, and where critic and rewards come from."""

    rewards: RewardSource | None = "world"
    """Source of the rewards; None: the run has no rewards."""
    budget: Budget | None = None
    """Limits for all requests of the runs that share it; None: no limit."""
    proposals: Sequence[Proposal] = ()
    """Settings of the agent that differ between particles; empty: they do not differ."""
    race: Race | None = None
    """The first particles that finish decide; None: no race."""
    critic: str = "uniform"
    """Name of the critic: its string, the class of an object, or the name of a function."""
    critic_from: str = "default"
    """Place that named it: "context", "configurable", "constructor", "AMC_CRITIC", the config file, or "default"."""

    @classmethod
    def chosen(
        cls, config: Config, arguments: Mapping[str, Any], settings: AmcSettings | None = None, **fixed: Any
    ) -> Settings:
        """Resolve the settings: arguments before `settings` before the configuration file before the defaults.

        Args:
            config: the configuration file.
            arguments: arguments of `amc`; None: not given.
            settings: its `settings=`; a field that has its default is not given.
            fixed: settings that a file cannot contain.
        """
        from_file = config.amc.model_dump(exclude_none=True)
        if config.on_critic_error is not None:
            from_file["on_critic_error"] = config.on_critic_error
        for name, field_ in FILE_FIELDS.items():
            if name in from_file and (reads := field_.metadata["reads"]) is not None:
                from_file[name] = reads(from_file[name])
        given = settings.given() if settings is not None else {}
        given |= {name: value for name, value in arguments.items() if value is not None}
        try:
            return cls(**{**from_file, **given, **fixed})
        except ConfigurationError as error:
            taken = [name for name in from_file if name not in given]
            if not taken:
                raise
            raise ConfigurationError(f"{error} ({', '.join(taken)}: from the {config.name})") from error

    def __post_init__(self) -> None:
        """Check the ranges, and settings against each other."""
        super().__post_init__()
        if not isinstance(self.budget, Budget | None):
            raise ConfigurationError(f"budget must be a Budget such as Budget(dollars=2), got {quoted(self.budget)}")
        if self.quorum is not None and self.quorum > self.start_size:
            raise ConfigurationError(f"quorum must lie in 1..n_particles={self.start_size}, got {self.quorum}")
        if self.adaptive is not None and self.resample == Never() and self.select in ("weight", "sample"):
            raise ConfigurationError(
                f'n_particles=Adaptive(...) with select="{self.select}" adds particles only at resampling points, and '
                "resample=Never() has none: give resample=AtSteps(...), or a number of particles"
            )
        for make in self.features:
            if not callable(make):
                raise ConfigurationError(
                    f"features must be classes or functions that make a Feature for each run, got {quoted(make)}: give "
                    "the class, or a functools.partial of it"
                )
        if self.race is not None:
            self.race.check(self)
        if self.rewards_observed:
            return
        if self.select == "return":
            raise ConfigurationError(
                'select="return" needs rewards, and this run sees none: give environment= or reward=, or select="value"'
            )
        if self.stop_at is not None:
            raise ConfigurationError("stop_at is a return, and this run sees no rewards: omit it")

    def require_source_of_weights(self) -> None:
        """Refuse a run that has neither a critic nor rewards; an explicit critic="uniform" is accepted.

        Raises:
            ConfigurationError: every particle would weigh the same, and the first would be returned.
        """
        if self.critic_from == "default" and not self.rewards_observed and not self._picks_without_values:
            raise ConfigurationError(
                f"no critic is named and the run sees no rewards: all {self.start_size} particles would weigh the "
                "same, and the first would be returned. Name a critic (critic=, AMC_CRITIC, the config file, or "
                'context={"critic": ...} of a call), give rewards by environment= or reward=, or pass '
                'critic="uniform" to run with neither'
            )

    @property
    def _picks_without_values(self) -> bool:
        """Whether the answer does not depend on weights: it wins a race, or is selected by its text."""
        by_text = self.select in ("shortest", "longest", "vote") and self.resample == Never()
        return not self._race_asks_critic if self.race is not None else by_text

    @property
    def _race_asks_critic(self) -> bool:
        return self.race is not None and self.race.asks_critic

    @property
    def rewards_observed(self) -> bool:
        """Whether the run has rewards and may use them."""
        return self.rewards is not None and not self.hide_rewards

    @property
    def may_call_critic(self) -> bool:
        """Whether the critic can be called: particles are weighed before their end, or the run sees no rewards."""
        first = self.resample.next_point(0)
        before_end = first is not None and first < self.horizon
        return before_end or not self.rewards_observed or self.stop_at is not None or self._race_asks_critic

    @property
    def adaptive(self) -> Adaptive | None:
        """The rule for the number of particles; None: the number is fixed."""
        return self.n_particles if isinstance(self.n_particles, Adaptive) else None

    def least_alive(self, n_particles: int) -> int:
        """Return the minimum number of particles, out of N, that must not fail."""
        return math.ceil(n_particles / 2) if self.quorum is None else self.quorum

    @property
    def pick(self) -> Select:
        """The criterion that selects the answer."""
        return self.select or ("return" if self.rewards_observed else "value")

    def as_plain(self) -> dict[str, Any]:
        """Convert the settings to plain values for a report."""
        return {
            "n_particles": self.start_size if self.adaptive is None else str(self.adaptive),
            "resample": repr(self.resample),
            "scheme": self.scheme,
            "beta": self.beta,
            "success_reward": self.success_reward,
            "select": self.pick,
            "finished": self.finished,
            "horizon": self.horizon,
            "stop_at": self.stop_at,
            "quorum": self.least_alive(self.start_size),
            "step_timeout": self.step_timeout,
            "run_timeout": self.run_timeout,
            "durable_every": self.durable_every,
            "budget": None if self.budget is None else dict(self.budget.limits),
            "on_critic_error": self.on_critic_error,
            **({"proposals": list(self.proposals)} if self.proposals else {}),
            **({} if self.race is None else {"race": self.race.as_plain()}),
            "rewards": self.rewards,
            "rewards_observed": self.rewards_observed,
            "critic": self.critic,
            "critic_from": self.critic_from,
        }


EnvironmentFunction = Callable[[State], Any]
"""Creates (Environment, Task) or a `Forkable` from the agent's input; may be async."""


@dataclass(frozen=True)
class WrappedAgent:
    """The checked arguments of `amc`."""

    agent: contract.Agent
    settings: Settings
    critics: CriticChoice
    step_after: tuple[str, ...]
    """Nodes after which the agent pauses."""
    environment: EnvironmentFunction | None
    reward: RewardFunction | None
    rewards_named: bool
    """Whether `rewards=` was given."""
    trajectory: TrajectoryFunction | None
    effects: contract.Effects
    prices: Mapping[str, Rates] = field(default_factory=dict)
    """Prices of the configuration file."""
