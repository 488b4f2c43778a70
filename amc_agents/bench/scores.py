"""What one run is worth and what it cost: the numbers that a comparison keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.errors import PopulationError
from amc_agents.run import Run
from amc_agents.smc import normalised
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage

TOP = 5
"""The paper's table 12 averages so many of the best trajectories."""


@dataclass(frozen=True)
class Scores:
    """True returns of a run's final population, retired particles included and failed ones left out."""

    oracle: float
    """The highest return: the pick of somebody who sees the rewards (paper's tables 1 to 3)."""
    success: float
    """1 where the oracle's pick reached the task's goal, else 0."""
    deployable: float | None
    """Return of the run's own pick where it was made without seeing a reward; None where it was not."""
    top5: float
    """Mean of the five highest returns, or of all where there are fewer (paper's table 12)."""
    mean: float
    """Plain mean over the particles (paper's appendix A.4). A retired particle's slot is refilled from live ones, so
    a run with early successes has more particles, and the later ones lower this mean: no weights are used here."""
    top5_distinct: float
    """As `top5`, over trajectories of different (thought, action) sequences."""
    mean_distinct: float
    """As `mean`, over trajectories of different (thought, action) sequences."""
    weighted_mean: float
    """Mean under the run's own final weights: the estimate of the posterior's mean return."""
    particles: int
    """Particles that were scored."""
    distinct: int
    """Different trajectories among them."""


@dataclass(frozen=True)
class Particles:
    """Every trajectory of a run's final population, failed ones left out: what subsampled pools are made of."""

    returns: tuple[float, ...]
    """`[M]` true returns."""
    values: tuple[float, ...]
    """`[M]` the run's final values, to six decimals: what the run's own pick is made by where it saw no rewards."""
    same_as: tuple[int, ...]
    """`[M]` the first index of a trajectory with the same (thought, action) sequence."""


METRICS: Mapping[str, str] = {
    "oracle": "oracle's pick",
    "deployable": "deployable pick",
    "top5": "top 5",
    "mean": "mean particle",
    "top5_distinct": "top 5, distinct",
    "mean_distinct": "mean, distinct",
    "weighted_mean": "weighted mean",
    "success": "success",
}
"""Metric -> its heading, in the order of tables."""


@dataclass(frozen=True)
class Cost:
    """What a run used. Input tokens include cached ones, which were not computed again."""

    policy_calls: int
    policy_input_tokens: int
    policy_output_tokens: int
    policy_cached_tokens: int
    critic_calls: int
    critic_tokens: int
    """Read and written."""
    critic_cached_tokens: int
    calls_without_usage: int
    """Calls whose provider reported none: token counts are then lower bounds."""
    seconds: float
    """Wall time of the run, while others may have shared the machine."""
    world_model_calls: int = 0
    """Requests to the forward model of decisions that imagine what comes next, reflections included."""
    world_model_tokens: int = 0
    """Read and written."""
    world_model_cached_tokens: int = 0
    steps: float | None = None
    """Steps of a trajectory, the mean over the final population; None in results of older versions."""

    @property
    def tokens(self) -> int:
        """Policy, critic and forward model together."""
        return self.policy_input_tokens + self.policy_output_tokens + self.critic_tokens + self.world_model_tokens


def scores_of(run: Run, *, single: bool, pick_means_something: bool, success: float = 1.0) -> Scores:
    """Scores of a run.

    Args:
        run: of one task.
        single: the run has one trajectory, made without knowing the world: it needs no choice, so it is deployable.
        pick_means_something: the critic predicts whole returns, so that a pick made by it alone is a prediction.
        success: least return that counts as a success, in reward units.

    Raises:
        PopulationError: every particle failed.
    """
    kept = _kept(run)
    trajectories = [run.population.trajectories[index] for index in kept]
    returns = np.array([one.return_ for one in trajectories])
    distinct = returns[sorted(set(_first_equal(trajectories)))]
    probabilities = normalised(run.population.log_weights[kept])
    deployable = run.best.return_ if single or (run.deployable and pick_means_something) else None
    oracle = float(returns.max())
    return Scores(
        oracle=oracle,
        success=float(oracle >= success),
        deployable=deployable,
        top5=_top(returns),
        mean=float(returns.mean()),
        top5_distinct=_top(distinct),
        mean_distinct=float(distinct.mean()),
        weighted_mean=float(probabilities @ returns),
        particles=len(returns),
        distinct=len(distinct),
    )


def particles_of(run: Run) -> Particles:
    """The particles behind a run's scores, one by one.

    Raises:
        PopulationError: every particle failed.
    """
    kept = _kept(run)
    trajectories = [run.population.trajectories[index] for index in kept]
    return Particles(
        returns=tuple(one.return_ for one in trajectories),
        values=tuple(round(float(value), 6) for value in run.population.values[kept]),
        same_as=tuple(_first_equal(trajectories)),
    )


def cost_of(run: Run, seconds: float) -> Cost:
    """Cost of a run that took `seconds` of wall time."""
    policy, critic, world = (run.usage.get(role, Usage()) for role in ("policy", "critic", "world model"))
    return Cost(
        policy_calls=policy.calls,
        policy_input_tokens=policy.input_tokens,
        policy_output_tokens=policy.output_tokens,
        policy_cached_tokens=policy.cached_tokens,
        critic_calls=critic.calls,
        critic_tokens=critic.tokens,
        critic_cached_tokens=critic.cached_tokens,
        calls_without_usage=policy.missing + critic.missing + world.missing,
        seconds=seconds,
        world_model_calls=world.calls,
        world_model_tokens=world.tokens,
        world_model_cached_tokens=world.cached_tokens,
        steps=float(np.mean([len(one.steps) for one in run.population.trajectories])),
    )


def _top(returns: FloatArray) -> float:
    return float(np.sort(returns)[-TOP:].mean())


def _kept(run: Run) -> list[int]:
    """Indices of the particles that did not fail."""
    failed = run.population.failed or (False,) * len(run.population.trajectories)
    kept = [index for index, lost in enumerate(failed) if not lost]
    if not kept:
        raise PopulationError("a run whose particles all failed has no score")
    return kept


def _first_equal(trajectories: Sequence[Trajectory]) -> list[int]:
    said: dict[tuple[tuple[str, str], ...], int] = {}
    return [
        said.setdefault(tuple((step.thought, step.action) for step in trajectory.steps), index)
        for index, trajectory in enumerate(trajectories)
    ]
