"""The result of one run of a comparison: its scores, particles and cost, one line of a results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from amc_agents.bench.results_folder import RunLine, checked_numbers, read_results
from amc_agents.errors import PopulationError
from amc_agents.prices import Rates
from amc_agents.prices import cost_of as priced
from amc_agents.quoting import quoted
from amc_agents.run import Run
from amc_agents.smc import normalised
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage

TOP = 5
"""Number of best trajectories that the paper's table 12 averages."""


@dataclass(frozen=True)
class Scores:
    """Scores from the true returns of a run's final population, including retired and excluding failed particles.

    A race has its answer alone: it stopped the others before their ends.
    """

    oracle: float
    """The highest return: the pick of an observer who sees the rewards (paper's tables 1 to 3)."""
    success: float
    """1 if the oracle's pick reached the task's goal, else 0."""
    deployable: float | None
    """Return of the run's own pick if it was made without seeing a reward, else None."""
    top5: float
    """Mean of the five highest returns, or of all returns if there are fewer (paper's table 12)."""
    mean: float
    """Unweighted mean over the particles (paper's appendix A.4). Retired particles are replaced by live ones, so a run
    with early successes has more particles, and the later particles lower this mean."""
    top5_distinct: float
    """`top5` over trajectories of different (thought, action) sequences."""
    mean_distinct: float
    """`mean` over trajectories of different (thought, action) sequences."""
    weighted_mean: float
    """Mean under the run's final weights: an estimate of the posterior's mean return."""
    particles: int
    """Number of scored particles."""
    distinct: int
    """Number of different trajectories among them."""


@dataclass(frozen=True)
class Particles:
    """Every trajectory of a run's final population except failed ones, for statistics over subsets of them.

    Of a race, the answer alone.
    """

    returns: tuple[float, ...]
    """`[M]` true returns."""
    values: tuple[float, ...]
    """`[M]` the run's final values, to six decimals: the run picks by them if it sees no rewards."""
    same_as: tuple[int, ...]
    """`[M]` the first index of a trajectory with the same (thought, action) sequence."""


@dataclass(frozen=True)
class Cost:
    """The resources that a run used. Input tokens include cached tokens, which were not computed again."""

    policy_calls: int
    policy_input_tokens: int
    policy_output_tokens: int
    policy_cached_tokens: int
    critic_calls: int
    critic_tokens: int
    """Input and output."""
    critic_cached_tokens: int
    calls_without_usage: int
    """Calls whose provider reported no usage; if above 0, token counts are lower bounds."""
    seconds: float
    """Wall time of the run, while other runs may share the machine."""
    world_model_calls: int = 0
    """Requests to the forward model of decisions, including reflections."""
    world_model_tokens: int = 0
    """Input and output."""
    world_model_cached_tokens: int = 0
    steps: float | None = None
    """Mean number of steps of the final population's trajectories; None in results of older versions."""
    dollars: float | None = None
    """Of all models; None if a price or an amount of usage is unknown."""

    @property
    def tokens(self) -> int:
        """Tokens of policy, critic and forward model together."""
        return self.policy_input_tokens + self.policy_output_tokens + self.critic_tokens + self.world_model_tokens


@dataclass(frozen=True)
class RunResult(RunLine):
    """The scores and the cost of one run."""

    scores: Scores
    cost: Cost
    notes: tuple[str, ...] = ()
    """Notes of the run, such as lost particles or a critic that fell back."""
    particles: Particles | None = None
    """The particles behind the scores; None in results of older versions."""
    prompt: str | None = None
    """Hash of the agent's input, such as its system prompt and the task; None in results of older versions."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Invert `to_json`. Raises `KeyError` or `TypeError` for other values."""
        particles = values.get("particles")
        key = (values["method"], values["task"], values["seed"])
        if [type(part) for part in key] != [str, str, int]:
            raise TypeError(f"the key is {quoted(key)}: expected a method, a task and a seed")
        for returns in (particles or {}).get("returns", ()), (particles or {}).get("same_as", ()):
            checked_numbers({f"particle {number}": value for number, value in enumerate(returns)})
        return cls(
            *key,
            scores=Scores(**checked_numbers(values["scores"])),
            cost=Cost(**checked_numbers(values["cost"])),
            notes=tuple(values["notes"]),
            particles=Particles(**{name: tuple(row) for name, row in particles.items()}) if particles else None,
            prompt=values.get("prompt"),
        )


def read_run_results(path: str | Path) -> list[RunResult]:
    """Read all run results of a folder; see `results_folder.read_results`."""
    return read_results(path, RunResult.from_json)


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


def scores_of(run: Run, *, single: bool, pick_means_something: bool, success: float = 1.0) -> Scores:
    """Score a run.

    Args:
        run: a run of one task.
        single: the run has one trajectory, made without knowledge of the world, so it needs no pick to be deployed; or
            it is a race, whose answer needs none.
        pick_means_something: the critic predicts whole returns, so its pick among finished trajectories is meaningful.
        success: minimum return that counts as a success, in reward units.

    Raises:
        PopulationError: every particle failed.
    """
    kept = _scored_indices(run)
    trajectories = scored_trajectories(run)
    returns = np.array([trajectory.return_ for trajectory in trajectories])
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
    """Return the particles behind a run's scores.

    Raises:
        PopulationError: every particle failed.
    """
    kept = _scored_indices(run)
    trajectories = scored_trajectories(run)
    return Particles(
        returns=tuple(trajectory.return_ for trajectory in trajectories),
        values=tuple(round(float(value), 6) for value in run.population.values[kept]),
        same_as=tuple(_first_equal(trajectories)),
    )


def cost_of(run: Run, seconds: float, prices: Mapping[str, Rates] | None = None) -> Cost:
    """Return the cost of a run that took `seconds` of wall time.

    Args:
        run: the run.
        seconds: wall time.
        prices: the user's prices; see `amc_agents.prices.cost`.
    """
    spent = priced(run, prices)
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
        steps=float(np.mean([len(trajectory.steps) for trajectory in run.population.trajectories])),
        dollars=None if spent.is_lower_bound else spent.total,
    )


def _top(returns: FloatArray) -> float:
    return float(np.sort(returns)[-TOP:].mean())


def scored_trajectories(run: Run) -> list[Trajectory]:
    """Return the trajectories behind a run's scores. Raises `PopulationError`: every particle failed."""
    return [run.population.trajectories[index] for index in _scored_indices(run)]


def _scored_indices(run: Run) -> list[int]:
    """Return the indices of the particles that did not fail; of a race, that of its answer."""
    if run.config.get("race") is not None:
        return [run.best_index]
    failed = run.population.failed or (False,) * len(run.population.trajectories)
    kept = [index for index, has_failed in enumerate(failed) if not has_failed]
    if not kept:
        raise PopulationError("a run whose particles all failed has no score")
    return kept


def _first_equal(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return, for each trajectory, the first index of a trajectory with the same thoughts and actions."""
    first: dict[tuple[tuple[str, str], ...], int] = {}
    return [
        first.setdefault(tuple((step.thought, step.action) for step in trajectory.steps), index)
        for index, trajectory in enumerate(trajectories)
    ]
