"""Chooses a method's temperature, resampling steps and beta, on training tasks.

One setting at a time: temperature first (from two starts), then the steps, then beta, each with the best of the others
so far. A setting is as good as the average of its pick and its top 5 (of few tasks the pick alone is mostly noise); on
a tie the mean particle decides. The pick is the oracle's, and the deployable one where rewards are hidden.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from amc_agents.bench import methods
from amc_agents.bench.comparison import Comparison
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.records import RunResult
from amc_agents.bench.report import measured
from amc_agents.bench.runner import compare
from amc_agents.bench.statistics import Estimate, estimate
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file

MAKERS: dict[str, Callable[[Tuned], Method]] = {
    methods.REACT: methods.react,
    methods.BEST_OF_N: methods.best_of_n,
    methods.SMC: methods.smc,
    methods.AMC: methods.amc,
    methods.AMC_HIDDEN: methods.amc_hidden,
}
"""The methods that have something to choose."""
RESAMPLED = (methods.SMC, methods.AMC, methods.AMC_HIDDEN)
STAGES = 3
SCORED = ("oracle", "deployable", "top5", "mean", "mean_distinct")
_OF_20 = ((4, 8, 12), (4, 8), (6, 12), (8,), (8, 12), (3, 6, 9, 12, 15), (9, 12, 15), (8, 11, 14, 17))
"""Schedules of an episode of 20 steps: few and many, early and late."""


@dataclass(frozen=True)
class Grid:
    """What is tried."""

    temperatures: tuple[float, ...] = (0.4, 0.6, 0.8, 1.0, 1.2)
    steps: tuple[tuple[int, ...], ...] = _OF_20
    betas: tuple[float, ...] = (0.05, 0.1, 0.2)
    """In the reward's units, for weights by the predicted mean."""
    success_reward: float | None = None
    """The one return besides 0, where there is no other: weights by eq. 5 are tried too."""
    soft_betas: tuple[float, ...] = (0.2, 0.4)
    """For weights by eq. 5."""

    @classmethod
    def of_horizon(cls, horizon: int, **given: Any) -> Grid:
        """The usual schedules, for episodes of at most so many steps."""
        return cls(steps=tuple(dict.fromkeys(scaled(steps, horizon) for steps in _OF_20)), **given)

    @property
    def starts(self) -> tuple[Tuned, Tuned]:
        """Two, for they like other temperatures: the greedier one earns more where particles differ more."""
        many = max(self.steps, key=len)
        return Tuned(steps=self.steps[0], beta=self.betas[len(self.betas) // 2]), Tuned(steps=many, beta=self.betas[0])


def scaled(steps: Iterable[int], horizon: int) -> tuple[int, ...]:
    """A schedule of 20 steps for another horizon."""
    return tuple(sorted({max(1, round(step * horizon / 20)) for step in steps}))


@dataclass(frozen=True)
class Cell:
    """One setting of one method, with its scores."""

    method: str
    tuned: Tuned
    scores: Mapping[str, Estimate]

    @classmethod
    def of(cls, method: str, tuned: Tuned, records: Sequence[RunResult]) -> Cell:
        """Scored by its runs, with standard errors over tasks."""
        found = {metric: measured(records, metric) for metric in SCORED}
        return cls(method, tuned, {metric: estimate(values) for metric, values in found.items() if values})

    @property
    def name(self) -> str:
        """In the kept runs."""
        return cell_name(self.method, self.tuned)

    @property
    def merit(self) -> tuple[float, float]:
        """What the best cell has most of."""
        pick = self.scores["deployable" if self.method == methods.AMC_HIDDEN else "oracle"]
        return (pick.mean + self.scores["top5"].mean) / 2, self.scores["mean"].mean

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        scores = {metric: one._asdict() for metric, one in self.scores.items()}
        return {"method": self.method, **asdict(self.tuned), "scores": scores}


Score = Callable[[Sequence[tuple[str, Tuned]]], list[Cell]]
"""Runs (method, setting) pairs and scores them."""


@dataclass(frozen=True)
class Tuning:
    """What was tried, and the best of each method."""

    tried: Sequence[Cell]
    best: Mapping[str, Cell]

    def save(self, path: Path, command: str, settings: Mapping[str, Any]) -> None:
        """Write all of it as JSON."""
        table = {
            "command": command,
            "settings": dict(settings),
            "chosen": {name: cell.as_plain() for name, cell in self.best.items()},
            "cells": [cell.as_plain() for cell in self.tried],
        }
        replace_file(path, json.dumps(table, indent=1) + "\n")


def tune(comparison: Comparison, out: str | Path, *, grid: Grid | None = None, full: bool = False) -> Tuning:
    """Choose the settings of a comparison's methods, by running it with others.

    Args:
        comparison: what is run, with any policy, agent and world, on training tasks; the settings of its methods do
            not matter.
        out: every run is kept there; what it holds is not run again.
        grid: what is tried; None: the usual.
        full: every combination, instead of one setting after the other.

    Raises:
        ConfigurationError: a method with nothing to choose, or `out` holds results of another comparison.
    """
    names = [method.name for method in comparison.methods]
    check_names(names)

    def score(wanted: Sequence[tuple[str, Tuned]]) -> list[Cell]:
        asked = replace(comparison, methods=[method_of(*one) for one in wanted])
        return cells_of(wanted, run_in_background(compare(asked, out, resume=True), n_workers=1))

    return choose(names, grid or Grid.of_horizon(comparison.horizon), score, full=full)


def choose(names: Sequence[str], grid: Grid, score: Score, *, full: bool = False) -> Tuning:
    """Try settings of the named methods, and take the best.

    Args:
        names: of `MAKERS`.
        grid: what is tried.
        score: runs settings.
        full: every combination of temperature, steps and beta, instead of one after the other.
    """
    tried: dict[str, Cell] = {}
    best: dict[str, Cell] = {}
    for stage in range(1 if full else STAGES):
        wanted: list[tuple[str, Tuned]] = []
        for name in names:
            if full and name in RESAMPLED:
                wanted += [(name, Tuned(*one)) for one in product(grid.temperatures, grid.steps, grid.betas)]
            elif stage == 0:
                starts = grid.starts if name in RESAMPLED else (Tuned(beta=grid.starts[0].beta),)
                wanted += [(name, replace(one, temperature=t)) for one in starts for t in grid.temperatures]
            elif name in RESAMPLED:
                wanted += [(name, one) for one in _changed(name, best[name].tuned, stage, grid)]
        # Where the grid is small, the two starts are one.
        for cell in score(list(dict.fromkeys(wanted))) if wanted else []:
            tried[cell.name] = cell
        for name in names:
            best[name] = max((cell for cell in tried.values() if cell.method == name), key=lambda cell: cell.merit)
    return Tuning(list(tried.values()), best)


def _changed(name: str, best: Tuned, stage: int, grid: Grid) -> list[Tuned]:
    if stage == 1:
        return [replace(best, steps=steps) for steps in grid.steps]
    means = [replace(best, beta=beta) for beta in grid.betas]
    if grid.success_reward is None or name == methods.SMC:
        return means
    return means + [replace(best, beta=beta, success_reward=grid.success_reward) for beta in grid.soft_betas]


def cell_name(name: str, tuned: Tuned) -> str:
    """A setting's name in the kept runs."""
    if name not in RESAMPLED:
        return f"{name} T={tuned.temperature}"
    soft = " soft" if tuned.success_reward else ""
    return f"{name} T={tuned.temperature} at={'-'.join(map(str, tuned.steps))} beta={tuned.beta}{soft}"


def method_of(name: str, tuned: Tuned) -> Method:
    """The method of a cell, under the cell's name."""
    return replace(MAKERS[name](tuned), name=cell_name(name, tuned))


def cells_of(wanted: Sequence[tuple[str, Tuned]], records: Sequence[RunResult]) -> list[Cell]:
    """The cells of (method, setting) pairs, from their runs."""
    runs: dict[str, list[RunResult]] = defaultdict(list)
    for record in records:
        runs[record.method].append(record)
    return [Cell.of(name, tuned, runs[cell_name(name, tuned)]) for name, tuned in wanted]


def check_names(names: Sequence[str]) -> None:
    """Refuse methods with nothing to choose.

    Raises:
        ConfigurationError: there are some; the message lists those that have.
    """
    unknown = [name for name in names if name not in MAKERS]
    if unknown:
        raise ConfigurationError(f"nothing to tune of {', '.join(unknown)}; there are: {', '.join(MAKERS)}")


def tuned_of(plain: Mapping[str, Any]) -> Tuned:
    """The setting of a cell that was kept as JSON."""
    known = {"temperature", "beta", "success_reward", "alpha", "k"}
    return Tuned(steps=tuple(plain["steps"]), **{key: plain[key] for key in known & plain.keys()})


def read_chosen(path: Path) -> dict[str, Tuned]:
    """What a tuning chose, by method.

    Raises:
        ConfigurationError: there is no such file, or it is no tuning.
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
    """The methods with the settings that were chosen for them.

    Where rewards are hidden, those of AMC hold unless others were chosen; a method that nothing was chosen for stays.
    """
    found = dict(chosen)
    if methods.AMC in found:
        found.setdefault(methods.AMC_HIDDEN, found[methods.AMC])
    return [MAKERS[one.name](found[one.name]) if one.name in found else one for one in given]


def config_text(tuned: Tuned, *, critic: str, n_particles: int, horizon: int, told: str) -> str:
    """The setting as a configuration file that `amc()` reads; the model's temperature is yours to set."""
    success = [] if tuned.success_reward is None else [f"success_reward = {tuned.success_reward}"]
    lines = [
        f"# {told}",
        f"# Sampling temperature of the model that acts: {tuned.temperature}",
        f"critic = {json.dumps(critic)}",
        "",
        "[amc]",
        f"n_particles = {n_particles}",
        f"resample = {{ at_steps = {list(tuned.steps)} }}",
        f"beta = {tuned.beta}",
        *success,
        f"horizon = {horizon}",
    ]
    return "\n".join([*lines, ""])
