"""What a critic gains: AMC with it, against Best-of-M with the same critic at equal cost."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from doses import HIDDEN, LEARNED, LEVELS, PLAIN, PROPOSALS, ROLLOUTS
from held_out import RAW
from playing import read_particles

from amc_agents.bench.statistics import Measured, Paired, paired
from amc_agents.training.value.metrics import auc
from subsampling import expected_pick
from tune import chosen, critics_of, metric_of

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
    auc: float
    """Within tasks, of unfinished states, at AMC's temperature."""
    at_end: float
    """The same of final states."""
    picks: Measured
    matched: Measured
    """Expected picks of Best-of-M at equal cost."""
    tries: float
    """M."""

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
        tries,
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


def ranking(pool: Lines) -> float:
    """AUC within tasks and steps, averaged over a task's steps, then over tasks with both outcomes."""
    means = [float(np.mean(list(line["auc"].values()))) for line in pool.values() if line["auc"]]
    return float(np.mean(means)) if means else math.nan


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


def interval(difference: Paired) -> str:
    """Show a difference, bold if its interval excludes 0."""
    text = f"{difference.difference:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.low > 0 or difference.high < 0 else text
