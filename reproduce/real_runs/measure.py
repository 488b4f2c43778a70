"""What the logs of three real agents say, and where it fails: the figures of docs/results/real-runs.

    python reproduce/real_runs/measure.py DATA docs/results/real-runs/results.json [--only SECTION ...]

DATA is what `prepare.py` wrote. Sections that the file has already are kept; each is written when it is done.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.quick import COUNTS, QuickModel
from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file
from amc_agents.operations.advise.advising import QUICK, advise, cross_fitted
from amc_agents.operations.advise.recommending import Row, interval, recommend, rows_of
from amc_agents.operations.advise.replay import replay
from amc_agents.operations.advise.runs import Runs, TaskRuns, closing_actions, read_runs
from amc_agents.smc.weights import BoolArray
from amc_agents.training.metrics import auc
from amc_agents.training.quick import Measured, RunStates, train_quick
from amc_agents.types import FloatArray, Trajectory

NAMES = ("terminal-bench", "tau-bench", "swe-bench")
SPLITS = 20
"""Random halves and random training sets, each with its seed."""
SIZES = (10, 20, 45, 70)
"""Numbers of Terminal-Bench's tasks to learn from."""

Scores = list[FloatArray]
"""For each task, `[n]` scores of its finished runs."""


class Logs:
    """The three sets, read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.runs = cache(self._read)

    def path(self, name: str) -> Path:
        """Return the folder of a set."""
        return self._folder / name

    def _read(self, name: str) -> Runs:
        return read_runs(self.path(name))


def some(runs: Runs, chosen: Iterable[int]) -> Runs:
    """Return some of the tasks."""
    return replace(runs, tasks=tuple(runs.tasks[index] for index in chosen))


def all_of(runs: Runs) -> list[Trajectory]:
    """Return the runs of all tasks."""
    return [trajectory for task in runs.tasks for trajectory in task.trajectories]


def scored(model: QuickModel, task: TaskRuns) -> FloatArray:
    """`[n]` scores of a task's finished runs."""
    return np.array([model.score(replace(run, done=True)) for run in task.trajectories])


def scores_of(runs: Runs, model: QuickModel) -> Scores:
    """Score all finished runs."""
    return [scored(model, task) for task in runs.tasks]


def own_values(runs: Runs, seed: int = 0) -> Scores:
    """Value all finished runs, each by a critic that has not seen its task."""
    fold, sizes = np.random.default_rng(seed).permutation(len(runs.tasks)) % 5, [len(task) for task in runs.tasks]
    values, _ = cross_fitted(states_of(runs), np.repeat(fold, sizes))
    return np.split(values, np.cumsum(sizes)[:-1])


def states_of(runs: Runs) -> RunStates:
    """Return the states of all runs."""
    return RunStates.of(all_of(runs), closing_actions(all_of(runs)))


def mean_of(values: Sequence[float] | FloatArray) -> dict[str, float]:
    """Return mean, 95% interval (Student's t) and number of values."""
    found = Measured.of(np.asarray(values, dtype=np.float64))
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.tasks}


def auc_within(runs: Runs, scores: Scores) -> FloatArray:
    """`[tasks with both outcomes]` share of the pairs of different outcomes that scores order rightly."""
    aucs = (auc(of_task, successful(task.success)) for task, of_task in zip(runs.tasks, scores, strict=True))
    return np.array([found for found in aucs if found is not None])


def auc_across(runs: Runs, scores: Scores) -> float:
    """Share of all pairs of runs with different outcomes that scores order rightly."""
    success = successful(np.concatenate([task.success for task in runs.tasks]))
    found = auc(np.concatenate(scores), success)
    return np.nan if found is None else found


def successful(success: FloatArray) -> BoolArray:
    """Which runs are better than the worst."""
    better: BoolArray = success > success.min()
    return better


def row_named(rows: Sequence[Row], name: str, k: int) -> Row:
    """Return a method's row."""
    return next(row for row in rows if (row.name, row.k) == (name, k))


def advice(logs: Logs) -> dict[str, Any]:
    """Ask `amc advise` about the two sets with several runs a task."""
    found = {}
    for name in NAMES[:2]:
        answer = advise(logs.path(name))
        best = [row.as_plain() for row in answer.best_of_each()]
        found[name] = {**answer.as_plain(), "methods": best}
    return found


def halves(logs: Logs) -> dict[str, Any]:
    """Choose method, k and critic on a random half of Terminal-Bench's tasks, and use them on the other."""
    runs = logs.runs(NAMES[0])
    names, differences, singles = Counter[str](), [], []
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(runs.tasks))
        here, there = some(runs, order[: len(order) // 2]), some(runs, order[len(order) // 2 :])
        chosen = recommend([*replay(here, {QUICK: own_values(here)})])
        names[f"{chosen.name} of {chosen.k}" if chosen else "nothing"] += 1
        critic = scores_of(there, trained(here))
        rows = rows_of([*replay(there, {QUICK: critic})])
        singles.append(rows[0].success)
        differences.append(row_named(rows, chosen.name, chosen.k).difference if chosen else 0.0)
    return {
        "splits": SPLITS, "recommended": dict(names.most_common()), "single": mean_of(singles),
        "difference on the other half": mean_of(differences), "smallest difference": min(differences),
    }  # fmt: skip


def trained(runs: Runs) -> QuickModel:
    """Train a quick critic on runs."""
    return train_quick(all_of(runs), closing_actions(all_of(runs))).model


def transfer(logs: Logs) -> dict[str, Any]:
    """Train the quick critic on the runs of other agents, and judge those of one that it has not seen."""
    found: dict[str, Any] = {}
    for name in NAMES:
        runs, others = logs.runs(name), [other for other in NAMES if other != name]
        closing = closing_actions(all_of(runs))
        sources = {"itself, cross-fitted": own_values(runs)}
        for used in ([others[0]], [others[1]], others):
            model = train_quick([run for other in used for run in all_of(logs.runs(other))]).model
            sources[" and ".join(used)] = scores_of(runs, replace(model, closing=closing))
        sources["fewest steps"] = [-task.steps for task in runs.tasks]
        found[name] = {source: worth(runs, scores) for source, scores in sources.items()}
    return found


def worth(runs: Runs, scores: Scores) -> dict[str, Any]:
    """Return what scores are worth: AUC, and the gain by choosing the best-scored of all runs of a task."""
    within = auc_within(runs, scores)
    figures: dict[str, Any] = {"auc across": auc_across(runs, scores)}
    if len(within):
        picked = np.array([t.success[s == s.max()].mean() for t, s in zip(runs.tasks, scores, strict=True)])
        differences = picked - np.array([task.success.mean() for task in runs.tasks])
        low, high = interval(differences)
        figures |= {
            "auc within": mean_of(within), "success": float(picked.mean()), "difference": float(differences.mean()),
            "low": low, "high": high,
        }  # fmt: skip
    return figures


def learning(logs: Logs) -> dict[str, Any]:
    """Learn from some of Terminal-Bench's tasks: what the critic and the recommendation are worth on the others."""
    runs = logs.runs(NAMES[0])
    found = {}
    for size in SIZES:
        aucs, picks, gains, names = [], [], [], Counter[str]()
        for seed in range(SPLITS):
            order = np.random.default_rng([seed, size]).permutation(len(runs.tasks))
            here, there = some(runs, order[:size]), some(runs, order[size:])
            chosen = recommend([*replay(here)])
            names[chosen.name if chosen else "nothing"] += 1
            rows = rows_of([*replay(there)])
            gains.append(row_named(rows, chosen.name, chosen.k).difference if chosen else 0.0)
            try:
                scores = scores_of(there, trained(here))
            except ConfigurationError:  # All outcomes are equal.
                continue
            aucs.append(auc_within(there, scores).mean())
            picks.append(worth(there, scores)["difference"])
        found[str(size)] = {
            "critic's auc": mean_of(aucs), "critic's gain": mean_of(picks), "recommended": dict(names.most_common()),
            "gain of what is recommended, without the critic": mean_of(gains),
        }  # fmt: skip
    return found


def counts(logs: Logs) -> dict[str, Any]:
    """Order the runs of a task by a single count."""
    found = {}
    for name in NAMES[:2]:
        runs = logs.runs(name)
        over = states_of(runs).over
        ends = np.cumsum([len(task) for task in runs.tasks])[:-1]
        found[name] = {
            count: mean_of(auc_within(runs, np.split(over.counts[:, column], ends)))
            for column, count in enumerate(COUNTS)
        }
        if np.isfinite(np.concatenate([task.seconds for task in runs.tasks])).all():
            found[name]["seconds"] = mean_of(auc_within(runs, [task.seconds for task in runs.tasks]))
    return found


Rule = Callable[[TaskRuns, FloatArray, np.ndarray], tuple[int, float]]
"""(task, critic's values, runs by the clock) -> the answer, and the time at which the others are stopped."""


def accepted(task: TaskRuns, values: FloatArray, order: np.ndarray, *, least: float) -> tuple[int, float]:
    """The first to finish that the critic values enough; none: the first."""
    for run in order:
        if values[run] >= least:
            return int(run), float(task.seconds[run])
    return int(order[0]), float(task.seconds[order].max())


def by_itself(task: TaskRuns, values: FloatArray, order: np.ndarray) -> tuple[int, float]:
    """The first that ends by itself; none: the one that the critic values most."""
    ended = [run for run in order if task.by_itself[run]]
    if ended:
        return int(ended[0]), float(task.seconds[ended[0]])
    return int(max(order, key=lambda run: values[run])), float(task.seconds[order].max())


def rules(logs: Logs) -> dict[str, Any]:
    """Combine the race of five with a cross-fitted critic, on Terminal-Bench."""
    runs = logs.runs(NAMES[0])
    tried: dict[str, Rule] = {
        "first to finish": partial(accepted, least=-np.inf),
        **{f"first with a value of at least {least}": partial(accepted, least=least) for least in (0.4, 0.6, 0.7, 0.8)},
        "first to end by itself, else the critic's": by_itself,
    }
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in tried}
    for seed in range(3):
        values = own_values(runs, seed)
        for name, rule in tried.items():
            rows = [played(task, rule, of_task) for task, of_task in zip(runs.tasks, values, strict=True)]
            success, tokens = np.array(rows).T
            single = sum(task.tokens.mean() for task in runs.tasks)
            found[name].append({"success": float(success.mean()), "tokens": float(tokens.sum() / single)})
    return {name: {key: [row[key] for row in rows] for key in ("success", "tokens")} for name, rows in found.items()}


def played(task: TaskRuns, rule: Rule, values: FloatArray, k: int = 5) -> tuple[float, float]:
    """Return success and tokens of a rule, over all subsets of k runs."""
    rows = []
    for subset in combinations(range(len(task)), k):
        chosen = np.array(subset)
        answer, end = rule(task, values, chosen[np.argsort(task.seconds[chosen], kind="stable")])
        share = np.minimum(1.0, end / np.maximum(task.seconds[chosen], 1e-9))
        rows.append((task.success[answer], (task.tokens[chosen] * share).sum()))
    success, tokens = np.mean(rows, axis=0)
    return float(success), float(tokens)


SECTIONS: dict[str, Callable[[Logs], dict[str, Any]]] = {
    "advice": advice, "rules": rules, "counts": counts, "transfer": transfer, "learning": learning, "halves": halves,
}  # fmt: skip


def main() -> None:
    """Measure what the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    logs = Logs(options.data)
    for name in options.only:
        if name not in results:
            results[name] = SECTIONS[name](logs)
            replace_file(options.results, json.dumps(results, indent=1) + "\n")
            print(f"{name}: done")


if __name__ == "__main__":
    main()
