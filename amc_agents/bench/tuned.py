"""Settings of methods that were tried on training tasks: their scores, the file that stores them, and their use."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amc_agents.bench import methods
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.records import RunResult
from amc_agents.bench.report import measured
from amc_agents.bench.run_files import FailedRun, causes_of
from amc_agents.bench.statistics import Estimate, Measured, Paired, estimate
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import read_json_object, replace_file
from amc_agents.smc import Adaptive

if TYPE_CHECKING:
    pass

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
SCORED = ("oracle", "deployable", "top5", "mean", "mean_distinct")


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
