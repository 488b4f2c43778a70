"""One table of what the learned value models gain in every world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.bench.statistics import Measured, Paired, paired
from amc_agents.markdown import table as table_in_markdown
from reproduce.dose.doses import LEARNED, OTHER, TRAINED_ON
from reproduce.dose.gains import Row, Table, interval, pool_of, row_of
from reproduce.dose.tune import chosen, critics_of
from reproduce.study.ablation_tables import holm, two_sided_p
from reproduce.study.crossed import crossed_interval

WEAKER = (OTHER, *TRAINED_ON)
"""The worlds of the fifth plan, whose endpoint is `learned` with all tokens counted."""
HEADER = ("world", "critic", "tasks", "one try", "AUC", "oracle's gain", "gain, policy tokens", "gain, all tokens", "p")


@dataclass(frozen=True)
class Learned:
    """A learned value model in a world, or all of a world together."""

    world: str
    critic: str
    one_try: float
    """Mean return of a try at the temperature of Best-of-M."""
    auc: float
    oracle: Paired
    """What the oracle gains in the same world, at equal policy tokens."""
    free: Paired
    """The gain at equal policy tokens."""
    paid: Paired
    """The gain with the critic's tokens counted."""

    @property
    def cells(self) -> list[str]:
        """The row of the table, without p."""
        gains = (interval(each) for each in (self.oracle, self.free, self.paid))
        return [self.world, self.critic, str(self.free.tasks), f"{self.one_try:.3f}", f"{self.auc:.3f}", *gains]


def learned_of(tables: Mapping[str, Table]) -> str:
    """Format one row per model; p is two-sided, with Holm's correction over the endpoints of the fifth plan."""
    rows = [row for name, table in tables.items() for row in _of_world(name, table)]
    endpoints = [row for row in rows if row.world in WEAKER and row.critic == LEARNED]
    corrected = holm([two_sided_p(row.paid.difference, row.paid.standard_error) for row in endpoints])
    p_of = {row.world: f"{p:.3f}" for row, p in zip(endpoints, corrected, strict=True)}
    cells = [[*row.cells, p_of.get(row.world, "") if row.critic == LEARNED else ""] for row in rows]
    return table_in_markdown(HEADER, cells, "llrrrrrrr")


def _of_world(name: str, table: Table) -> Iterator[Learned]:
    """The models of a world; several are also averaged, with an interval over tasks and models."""
    critics = [critic for critic in critics_of(name) if critic.startswith(LEARNED)]
    oracle = _row(name, table, "oracle").gain
    free = [_row(name, table, critic) for critic in critics]
    paid = [_row(name, table, critic, charged=True) for critic in critics]
    tries = [_one_try(name, table, row) for row in free]
    for critic, one_try, without, with_all in zip(critics, tries, free, paid, strict=True):
        yield Learned(name, critic, one_try, without.auc, oracle, without.gain, with_all.gain)
    if len(critics) > 1:
        auc = float(np.mean([row.auc for row in free]))
        yield Learned(name, "together", float(np.mean(tries)), auc, oracle, _together(free), _together(paid))


def _row(name: str, table: Table, critic: str, *, charged: bool = False) -> Row:
    setting, heat = chosen(name, critic)
    return row_of(name, table, critic, setting.name, heat, charged=charged)


def _one_try(name: str, table: Table, row: Row) -> float:
    return float(np.mean([np.mean(line["returns"]) for line in pool_of(name, table, row.critic, row.heat).values()]))


def _together(rows: Sequence[Row]) -> Paired:
    """The mean gain over models, each of which counts as a seed, with an interval over tasks and models."""

    def merged(of: Sequence[Measured]) -> Measured:
        return {(task, model): score for model, each in enumerate(of) for (task, _), score in each.items()}

    tasks = sorted(set.intersection(*(set(row.picks) for row in rows)))
    low, high = crossed_interval(np.array([[row.picks[task] - row.matched[task] for row in rows] for task in tasks]))
    both = paired(merged([row.picks for row in rows]), merged([row.matched for row in rows]))
    return both._replace(low=low, high=high)
