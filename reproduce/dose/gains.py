"""What a critic gains: AMC with it, against Best-of-M with the same critic at equal cost."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents.bench.statistics import N_RESAMPLES, Measured, Paired, paired
from amc_agents.training.metrics import auc
from amc_agents.types import FloatArray
from reproduce.dose.doses import HIDDEN, LEARNED, LEVELS, PLAIN, PROPOSALS, ROLLOUTS
from reproduce.dose.held_out import RAW
from reproduce.dose.playing import read_particles
from reproduce.dose.tune import chosen, critics_of, metric_of
from reproduce.study.subsampling import expected_pick

Lines = Mapping[str, Mapping[str, Any]]
"""Task -> line."""
Table = Mapping[tuple[str, str], Lines]
"""(critic, setting) -> lines."""


@dataclass(frozen=True)
class Row:
    """A critic with a setting, against Best-of-M with the same critic."""

    critic: str
    setting: str
    heat: float
    """Temperature of Best-of-M."""
    areas: Mapping[str, float]
    """AUC within each task that has both outcomes, of unfinished states, at AMC's temperature."""
    at_end: float
    """The same of final states."""
    picks: Measured
    matched: Measured
    """Expected picks of Best-of-M at equal cost, or of the whole pool."""
    tries: float
    """M at equal cost."""
    most: int
    """Number of tries in the pool."""

    @property
    def auc(self) -> float:
        """Mean of the areas over tasks."""
        return float(np.mean(list(self.areas.values()))) if self.areas else math.nan

    @property
    def gain(self) -> Paired:
        """AMC minus Best-of-M."""
        return paired(self.picks, self.matched)


def packed(name: str) -> Path:
    """The file of a world's packed runs."""
    return RAW / f"{name}.jsonl.gz"


def lines_of(packed: Path) -> dict[tuple[str, str], Lines]:
    """Read packed runs."""
    table: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for text in gzip.decompress(packed.read_bytes()).decode().splitlines():
        line = json.loads(text)
        table[line["critic"], line["setting"]][line["task"]] = line
    return dict(table)


def row_of(
    name: str,
    table: Table,
    critic: str,
    setting: str,
    heat: float,
    *,
    charged: bool = False,
    metric: str | None = None,
) -> Row:
    """Compare a critic's runs with Best-of-M.

    Args:
        name: the world.
        table: all lines.
        critic: the critic.
        setting: of AMC.
        heat: temperature of Best-of-M.
        charged: whether the critic's tokens count; Best-of-M asks it only where no reward shows the best try.
        metric: what is compared; None: the world's pick.
    """
    metric = metric or metric_of(name)
    runs, pool = table[critic, setting], pool_of(name, table, critic, heat)
    common = sorted(runs.keys() & pool.keys())
    asked = charged and name in HIDDEN
    per_try = np.mean([tokens(pool[task], charged=asked) / len(pool[task]["returns"]) for task in common])
    tries = float(np.mean([tokens(runs[task], charged=charged) for task in common]) / per_try)
    amc_heat = setting.split("_")[0]
    ranked = table.get((critic, f"pool_{amc_heat}"), {})
    return Row(
        critic, setting, heat, ranking(ranked), ending(ranked),
        {(task, 0): float(runs[task][metric]) for task in common},
        {(task, 0): expected_pick(read_particles(pool[task]), tries, metric) for task in common},
        tries, min(_n_tries(pool[task]) for task in common),
    )  # fmt: skip


def pool_of(name: str, table: Table, critic: str, heat: float) -> Lines:
    """Return the tries at a temperature; where success shows, of the critic with the most tries, since none picks."""
    pools = {judge: pool for (judge, setting), pool in table.items() if setting == f"pool_T{heat:g}"}
    if name in HIDDEN:
        return pools[critic]
    tasks = sorted(set.union(*(set(pool) for pool in pools.values())))
    return {task: max((pool[task] for pool in pools.values() if task in pool), key=_n_tries) for task in tasks}


def _n_tries(line: Mapping[str, Any]) -> int:
    return len(line["returns"])


def tokens(line: Mapping[str, Any], *, charged: bool) -> float:
    """Tokens of a run or pool."""
    return float(line["policy_tokens"] + charged * line["critic_tokens"])


def ranking(pool: Lines) -> dict[str, float]:
    """AUC within tasks and steps, averaged over a task's steps; of the tasks with both outcomes."""
    return {task: float(np.mean(list(line["auc"].values()))) for task, line in pool.items() if line["auc"]}


def ending(pool: Lines) -> float:
    """AUC of final values within tasks."""
    areas = [auc(np.array(line["values"]), np.array(line["returns"]) > 0) for line in pool.values()]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else math.nan


def rows_of(name: str, table: Table, metric: str | None = None) -> list[Row]:
    """Return the critics of the curve, at equal policy tokens."""
    rows = []
    for critic in critics_of(name):
        setting, heat = chosen(name, critic)
        if (critic, setting.name) in table:
            rows.append(row_of(name, table, critic, setting.name, heat, metric=metric))
    for critic, played in table:
        if critic == ROLLOUTS and not played.startswith("pool"):
            heat = chosen(name, "oracle")[1]
            rows.append(row_of(name, table, critic, played, heat, metric=metric))
    return rows


def endpoint_rows(name: str, table: Table) -> list[Row]:
    """Return the learned critics' rows with their tokens charged; in the workshop, also several proposals."""
    runs = [(critic, *chosen(name, critic)) for critic in critics_of(name) if critic.startswith(LEARNED)]
    if name not in PLAIN:
        runs.append((LEARNED, PROPOSALS, chosen(name, LEARNED)[1]))
    return [row_of(name, table, critic, setting.name, heat, charged=True) for critic, setting, heat in runs]


def levels_of(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the oracle and its noisy versions."""
    return [row for row in rows if row.critic in {level.name for level in LEVELS}]


def slope(levels: Sequence[Row]) -> Paired:
    """Slope of the gain over the AUC: a least-squares line per task, averaged over tasks."""
    centred = np.array([row.auc for row in levels]) - np.mean([row.auc for row in levels])
    common = set.intersection(*(set(row.picks) for row in levels))
    slopes = {
        key: float(centred @ [row.picks[key] - row.matched[key] for row in levels] / (centred @ centred))
        for key in common
    }
    return paired(slopes, dict.fromkeys(slopes, 0.0))


class Bounded(NamedTuple):
    """An estimate with a 95% interval over tasks."""

    mean: float
    low: float
    high: float


def crossing(levels: Sequence[Row]) -> Bounded:
    """Return the AUC at which a line through the levels crosses a gain of 0."""

    def zero(areas: FloatArray, gains: FloatArray) -> float:
        rise, start = np.polyfit(areas, gains, 1)
        return float(-start / rise)

    return _resampled(levels, zero)


def below_the_line(levels: Sequence[Row], row: Row) -> Bounded:
    """Return how far a critic's gain lies below a line through the levels, at its AUC."""

    def distance(areas: FloatArray, gains: FloatArray) -> float:
        return float(np.polyval(np.polyfit(areas[:-1], gains[:-1], 1), areas[-1]) - gains[-1])

    return _resampled([*levels, row], distance)


def _resampled(rows: Sequence[Row], statistic: Callable[[FloatArray, FloatArray], float]) -> Bounded:
    """Bootstrap a statistic of the rows' AUCs and gains: both from the same sample of the tasks that all rows have."""
    tasks = sorted(set.intersection(*({task for task, _ in row.picks} for row in rows)))
    gains = np.array([[row.picks[task, 0] - row.matched[task, 0] for task in tasks] for row in rows])
    areas = np.array([[row.areas.get(task, math.nan) for task in tasks] for row in rows])
    rng = np.random.default_rng(0)
    draws = (rng.integers(0, len(tasks), len(tasks)) for _ in range(N_RESAMPLES))
    found = [statistic(np.nanmean(areas[:, draw], axis=1), gains[:, draw].mean(axis=1)) for draw in draws]
    low, high = np.percentile(found, [2.5, 97.5])
    return Bounded(statistic(np.nanmean(areas, axis=1), gains.mean(axis=1)), float(low), float(high))


def interval(difference: Paired) -> str:
    """Show a difference, bold if its interval excludes 0."""
    text = f"{difference.difference:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.low > 0 or difference.high < 0 else text
