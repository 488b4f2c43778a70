"""Choose a method's temperature, resampling steps and beta on training tasks.

Settings are tried one after the other: the temperature first (from two starting points), then the resampling steps,
then beta, each with the best values of the others so far. The merit of a setting is the average of its pick and its
top 5, because the pick alone is noisy on few tasks; the mean particle breaks ties. The pick is the oracle's, or the
deployable pick for methods that hide rewards.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amc_agents.bench import methods
from amc_agents.bench.comparison import Comparison, predicts_return, ready_critic, steered_blindly
from amc_agents.bench.failures import FailedRun, causes_of
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.records import RunResult
from amc_agents.bench.report import measured
from amc_agents.bench.runner import compare
from amc_agents.bench.statistics import Estimate, Measured, Paired, estimate
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import read_json_object, replace_file
from amc_agents.smc import Adaptive

if TYPE_CHECKING:
    from amc_agents.bench.plan import Plan

MAKERS: dict[str, Callable[[Tuned], Method]] = {
    methods.REACT: methods.react,
    methods.BEST_OF_N: methods.best_of_n,
    methods.SMC: methods.smc,
    methods.AMC: methods.amc,
    methods.AMC_HIDDEN: methods.amc_hidden,
    methods.TREE_OF_THOUGHTS: methods.tree_of_thoughts,
    methods.LATS: methods.lats,
}
"""The methods that can be tuned, by name."""
RESAMPLED = (methods.SMC, methods.AMC, methods.AMC_HIDDEN)
STAGES = 3
SCORED = ("oracle", "deployable", "top5", "mean", "mean_distinct")
_OF_20 = ((4, 8, 12), (4, 8), (6, 12), (8,), (8, 12), (3, 6, 9, 12, 15), (9, 12, 15), (8, 11, 14, 17))
"""Schedules for an episode of 20 steps, with few or many resampling points, early or late."""


@dataclass(frozen=True)
class Grid:
    """The values to try."""

    temperatures: tuple[float, ...] = (0.4, 0.6, 0.8, 1.0, 1.2)
    steps: tuple[tuple[int, ...], ...] = _OF_20
    betas: tuple[float, ...] = (0.05, 0.1, 0.2)
    """In reward units, for weights by the predicted mean return."""
    success_reward: float | None = None
    """The return of a success, if every other return is 0; weights by eq. 5 are then tried too."""
    soft_betas: tuple[float, ...] = (0.2, 0.4)
    """Values of beta for weights by eq. 5."""
    n_particles: tuple[int, ...] = ()
    """Values of N, which only a joint search tries (`joint.choose_jointly`); empty: the comparison's."""

    @classmethod
    def of_horizon(cls, horizon: int, **settings: Any) -> Grid:
        """Return the default grid, with schedules for episodes of `horizon` steps.

        Args:
            horizon: maximum number of steps of an episode.
            **settings: other fields.
        """
        return cls(steps=tuple(dict.fromkeys(scaled(steps, horizon) for steps in _OF_20)), **settings)

    @property
    def starts(self) -> tuple[Tuned, Tuned]:
        """Two starting points with different best temperatures: more resampling favours more diverse particles."""
        many = max(self.steps, key=len)
        return Tuned(steps=self.steps[0], beta=self.betas[len(self.betas) // 2]), Tuned(steps=many, beta=self.betas[0])


def scaled(steps: Iterable[int], horizon: int) -> tuple[int, ...]:
    """Scale a schedule for 20 steps to another horizon."""
    return tuple(sorted({max(1, round(step * horizon / 20)) for step in steps}))


@dataclass(frozen=True)
class Cell:
    """One setting of one method, with its scores."""

    method: str
    tuned: Tuned
    scores: Mapping[str, Estimate]
    calls: float = 0.0
    """Policy calls of a run, in the mean over its runs."""
    picks: Measured = field(default_factory=dict, compare=False, repr=False)
    """(task, seed) -> the pick's return; empty in a cell that was read from a file."""

    @classmethod
    def of(cls, method: str, tuned: Tuned, records: Sequence[RunResult]) -> Cell:
        """Score a setting by its runs, with standard errors over tasks."""
        scores = {metric: measured(records, metric) for metric in SCORED}
        calls = sum(record.cost.policy_calls for record in records) / max(len(records), 1)
        estimates = {metric: estimate(values) for metric, values in scores.items() if values}
        return cls(method, tuned, estimates, calls, scores[picked_by(method)])

    @property
    def name(self) -> str:
        """Name of the method in the stored runs."""
        return cell_name(self.method, self.tuned)

    @property
    def pick(self) -> Estimate:
        """The pick that a setting is chosen by: the deployable pick if rewards are hidden, else the oracle's."""
        return self.scores[picked_by(self.method)]

    @property
    def merit(self) -> tuple[float, float]:
        """(average of pick and top 5, mean particle): the best cell has the largest."""
        return (self.pick.mean + self.scores["top5"].mean) / 2, self.scores["mean"].mean

    def as_plain(self) -> dict[str, Any]:
        """Convert to JSON values."""
        scores = {metric: score._asdict() for metric, score in self.scores.items()}
        tuned = {name: value for name, value in asdict(self.tuned).items() if (name, value) != ("n_particles", None)}
        return {"method": self.method, **tuned, "policy_calls": self.calls, "scores": scores}


Setting = tuple[str, Tuned]
"""(method, setting)"""
Score = Callable[[Sequence[Setting]], list[Cell]]
"""Runs and scores (method, setting) pairs."""


def picked_by(name: str) -> str:
    """Return the score that a method's pick is: the deployable one if rewards are hidden, else the oracle's."""
    return "deployable" if name == methods.AMC_HIDDEN else "oracle"


@dataclass(frozen=True)
class Tuning:
    """All cells that were tried, and the best cell of each method."""

    tried: Sequence[Cell]
    best: Mapping[str, Cell]
    regret: Mapping[str, Paired] = field(default_factory=dict)
    """Method -> what the setting of a search of one setting after the other loses, if it was measured (`joint`)."""

    def save(self, path: Path, command: str, settings: Mapping[str, Any]) -> None:
        """Write the cells as JSON."""
        table = {
            "command": command,
            "settings": dict(settings),
            "chosen": {name: cell.as_plain() for name, cell in self.best.items()},
            "cells": [cell.as_plain() for cell in self.tried],
            **({"regret": {name: lost._asdict() for name, lost in self.regret.items()}} if self.regret else {}),
        }
        replace_file(path, json.dumps(table, indent=1) + "\n")


def tune(comparison: Comparison, out: str | Path, *, grid: Grid | None = None, full: bool = False) -> Tuning:
    """Choose the settings of a comparison's methods by running it with other settings.

    Args:
        comparison: what to run, with any policy, agent and world, on training tasks. The settings of its methods are
            ignored.
        out: folder that stores every run; stored runs are not repeated.
        grid: the values to try; None: the default grid.
        full: try every combination, instead of one setting after the other.

    Raises:
        ConfigurationError: a method cannot be tuned, or `out` holds results of another comparison.
    """
    names = [method.name for method in comparison.methods]
    check_names(names)

    def score(settings: Sequence[Setting]) -> list[Cell]:
        tried = replace(comparison, methods=[method_of(name, tuned) for name, tuned in settings])
        return cells_of(settings, run_in_background(compare(tried, out, resume=True), n_workers=1))

    return choose(names, grid or Grid.of_horizon(comparison.horizon), score, full=full)


def tuning_grid(
    names: Sequence[str], plan: Plan, temperatures: tuple[float, ...] | None, success_reward: float | None
) -> Grid:
    """Return the grid for a plan.

    Args:
        names: the methods to tune.
        plan: what to run.
        temperatures: the temperatures to try; None: the default ones.
        success_reward: the return of a success, if every other return is 0.

    Raises:
        ConfigurationError: a method cannot be tuned, or not with the plan's critic.
    """
    check_names(names)
    scale = plan.reward_scale
    settings: dict[str, Any] = {} if temperatures is None else {"temperatures": temperatures}
    if scale != 1:
        settings |= {name: tuple(scale * beta for beta in getattr(Grid, name)) for name in ("betas", "soft_betas")}
    grid = Grid.of_horizon(plan.horizon, success_reward=success_reward, **settings)
    for name in names:
        if steered_blindly(MAKERS[name](grid.starts[0])) and not predicts_return(ready_critic(plan.critic_spec)):
            raise ConfigurationError(
                f"{name}: the critic must predict the whole return: choose another critic, or leave the method out"
            )
    return grid


def choose(names: Sequence[str], grid: Grid, score: Score, *, full: bool = False) -> Tuning:
    """Try settings of the named methods, and choose the best.

    Args:
        names: keys of `MAKERS`.
        grid: the values to try.
        score: runs and scores settings.
        full: try every combination of temperature, steps and beta, instead of one setting after the other.
    """
    tried: dict[str, Cell] = {}
    best: dict[str, Cell] = {}
    for stage in range(1 if full else STAGES):
        settings = [setting for name in names for setting in _to_try(name, best.get(name), stage, grid, full=full)]
        # In a small grid the two starting points can be equal.
        for cell in score(list(dict.fromkeys(settings))) if settings else []:
            tried[cell.name] = cell
        for name in names:
            best[name] = max((cell for cell in tried.values() if cell.method == name), key=lambda cell: cell.merit)
    return Tuning(list(tried.values()), best)


def _to_try(name: str, best: Cell | None, stage: int, grid: Grid, *, full: bool) -> list[Setting]:
    """Return the settings of a method that a stage tries."""
    if full and name in RESAMPLED:
        return [(name, Tuned(*values)) for values in product(grid.temperatures, grid.steps, grid.betas)]
    if best is None:
        starts = grid.starts if name in RESAMPLED else (Tuned(beta=grid.starts[0].beta),)
        return [(name, replace(start, temperature=t)) for start in starts for t in grid.temperatures]
    return [(name, tuned) for tuned in _changed(name, best.tuned, stage, grid)] if name in RESAMPLED else []


def _changed(name: str, best: Tuned, stage: int, grid: Grid) -> list[Tuned]:
    """Return the best setting so far with other steps (stage 1) or another beta (stage 2)."""
    if stage == 1:
        return [replace(best, steps=steps) for steps in grid.steps]
    means = [replace(best, beta=beta) for beta in grid.betas]
    if grid.success_reward is None or name == methods.SMC:
        return means
    return means + [replace(best, beta=beta, success_reward=grid.success_reward) for beta in grid.soft_betas]


def cell_name(name: str, tuned: Tuned) -> str:
    """Return the name of a setting's method in the stored runs."""
    size = f" N={tuned.n_particles}" if tuned.n_particles else ""
    if name not in RESAMPLED:
        return f"{name} T={tuned.temperature}{size}"
    soft = " soft" if tuned.success_reward else ""
    return f"{name} T={tuned.temperature} at={'-'.join(map(str, tuned.steps))} beta={tuned.beta}{soft}{size}"


def method_of(name: str, tuned: Tuned) -> Method:
    """Return the method with a setting, named as its cell."""
    return replace(_made(name, tuned), name=cell_name(name, tuned))


def _made(name: str, tuned: Tuned) -> Method:
    """Return the method with a setting."""
    method = MAKERS[name](tuned)
    return method if tuned.n_particles is None else replace(method, n_particles=tuned.n_particles)


def cells_of(settings: Sequence[Setting], records: Sequence[RunResult]) -> list[Cell]:
    """Score (method, setting) pairs by their runs."""
    runs: dict[str, list[RunResult]] = defaultdict(list)
    for record in records:
        runs[record.method].append(record)
    return [Cell.of(name, tuned, runs[cell_name(name, tuned)]) for name, tuned in settings]


def without_failed_tasks(
    records: Sequence[RunResult], failures: Sequence[FailedRun]
) -> tuple[list[RunResult], str | None]:
    """Leave out the tasks on which a run of any setting failed, so that all settings are scored on the same tasks.

    Args:
        records: results of the settings that are compared.
        failures: their failed runs.

    Returns:
        The other tasks' results, and a note; None if no run failed.

    Raises:
        ConfigurationError: no task is left.
    """
    lost = {failure.task for failure in failures}
    kept = [record for record in records if record.task not in lost]
    if not lost:
        return kept, None
    causes = ", ".join(causes_of(failure.error for failure in failures))
    if not kept:
        raise ConfigurationError(f"a run failed on every one of the {len(lost)} tasks: {causes}")
    return kept, (
        f"left out: {len(lost)} tasks on which a run failed, for all settings of this round ({causes}). The same "
        "command runs them again"
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse methods that cannot be tuned.

    Raises:
        ConfigurationError: a method cannot be tuned; the message lists those that can.
    """
    unknown = [name for name in names if name not in MAKERS]
    if unknown:
        raise ConfigurationError(f"cannot tune {', '.join(unknown)}; choose from: {', '.join(MAKERS)}")


def tuned_of(plain: Mapping[str, Any]) -> Tuned:
    """Read the setting of a cell from JSON values."""
    known = {"temperature", "beta", "success_reward", "alpha", "k", "n_particles"}
    return Tuned(steps=tuple(plain["steps"]), **{key: plain[key] for key in known & plain.keys()})


def read_tuning(path: Path) -> tuple[Tuning, dict[str, Any]]:
    """Read a tuning.json: its cells, and the command and settings that made it.

    Raises:
        CheckpointError: the file cannot be read, or is not a tuning.json.
    """
    remedy = "expected the tuning.json that `amc tune` writes"
    content = read_json_object(path, remedy=remedy)
    try:
        tried = [_cell_of(cell) for cell in content["cells"]]
        best = {name: _cell_of(cell) for name, cell in content["chosen"].items()}
        regret = {name: Paired(**lost) for name, lost in content.get("regret", {}).items()}
        return Tuning(tried, best, regret), {"command": content["command"], "settings": content["settings"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error}): {remedy}") from error


def _cell_of(plain: Mapping[str, Any]) -> Cell:
    scores = {metric: Estimate(**score) for metric, score in plain["scores"].items()}
    return Cell(plain["method"], tuned_of(plain), scores, plain.get("policy_calls", 0.0))


def read_chosen(path: Path) -> dict[str, Tuned]:
    """Read the setting that `amc tune` chose for each method.

    Raises:
        ConfigurationError: the file cannot be read, or is not a tuning.json.
    """
    try:
        chosen = json.loads(path.read_text(encoding="utf-8"))["chosen"]
        return {name: tuned_of(cell) for name, cell in chosen.items()}
    except OSError as error:
        raise ConfigurationError(f"tuned settings {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"tuned settings {path}: expected the tuning.json that `amc tune` writes ({type(error).__name__}: {error})"
        ) from error


def retuned(given: Sequence[Method], chosen: Mapping[str, Tuned]) -> list[Method]:
    """Return the methods with the settings chosen for them; a method without a chosen setting stays unchanged.

    A method that hides rewards uses AMC's setting if it has no setting of its own, and a method that ends at its first
    success uses that of the method that goes on.
    """
    tuned = dict(chosen)
    if methods.AMC in tuned:
        tuned.setdefault(methods.AMC_HIDDEN, tuned[methods.AMC])
    return [_with_setting(method, tuned) for method in given]


def _with_setting(method: Method, tuned: Mapping[str, Tuned]) -> Method:
    goes_on = method.name.removesuffix(methods.STOPPING)
    if method.name in tuned:
        return replace(_made(method.name, tuned[method.name]), label=method.label)
    if method.stop_at is not None and goes_on in tuned:
        kept = {name: getattr(method, name) for name in ("name", "label", "critic", "hide_rewards", "stop_at")}
        return replace(_made(goes_on, tuned[goes_on]), **kept)
    return method


def config_text(tuned: Tuned, *, critic: str, n_particles: int | Adaptive, horizon: int, comment: str) -> str:
    """Write a setting as a configuration file of `amc()`. The model's temperature can only be a comment."""
    success = [] if tuned.success_reward is None else [f"success_reward = {tuned.success_reward}"]
    lines = [
        f"# {comment}",
        f"# Sampling temperature of the model that acts: {tuned.temperature}",
        f"critic = {json.dumps(critic)}",
        "",
        "[amc]",
        f"n_particles = {json.dumps(methods.plain_size(n_particles))}",
        f"resample = {{ at_steps = {list(tuned.steps)} }}",
        f"beta = {tuned.beta}",
        *success,
        f"horizon = {horizon}",
    ]
    return "\n".join([*lines, ""])
