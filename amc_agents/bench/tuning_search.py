"""A search for settings, as `amc tune` makes it: carried out, or only counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from amc_agents.bench.joint import ScoreOn, choose_jointly, regret_of
from amc_agents.bench.statistics import Estimate
from amc_agents.bench.tuning import SCORED, Cell, Grid, Setting, Tuning, choose
from amc_agents.errors import ConfigurationError


class PlannedRuns(NamedTuple):
    """The runs that a search makes of a method with one N."""

    method: str
    n_particles: int | None
    """None: the comparison's."""
    n_tasks: int
    """Number of tasks, summed over settings; each is played once per seed."""


@dataclass(frozen=True)
class TuningSearch:
    """Which settings are tried, and how."""

    names: Sequence[str]
    """The methods: keys of `tuning.MAKERS`."""
    grid: Grid
    n_tasks: int
    """Number of training tasks that the search may play."""
    full: bool = False
    """Try every combination, instead of one setting after the other."""
    joint: bool = False
    """Try combinations by successive halving."""
    max_calls: float | None = None
    """Policy calls of a run, at most, in a joint search."""
    regret: int | None = None
    """Number of further tasks on which the choice of a joint search is compared with the other search's."""

    def __post_init__(self) -> None:
        """Refuse a search without tasks."""
        if self.n_tasks < 1:
            raise ConfigurationError(f"a search needs training tasks, got {self.n_tasks}")

    def carry_out(self, score: ScoreOn, check: ScoreOn) -> Tuning:
        """Choose the settings.

        Args:
            score: runs and scores settings on the first training tasks.
            check: runs and scores settings on the further tasks, to measure the regret.
        """
        tuning, other = self._choices(score, score)
        if other is None or self.regret is None:
            return tuning
        return replace(tuning, regret=regret_of(tuning.best, other.best, check, self.regret))

    def planned(self) -> list[PlannedRuns]:
        """Count the runs at most, without playing any. `max_calls`, and settings that meet again, make them fewer."""
        # Which settings both searches try depends on scores: they are counted apart.
        searches: tuple[dict[Setting, int], dict[Setting, int]] = ({}, {})
        self._choices(*(partial(_count, most) for most in searches))
        total: dict[tuple[str, int | None], int] = {}
        for most in searches:
            for (name, tuned), n_tasks in most.items():
                total[name, tuned.n_particles] = total.get((name, tuned.n_particles), 0) + n_tasks
        for key in list(total) if self.regret else ():
            total[key] += 2 * (self.regret or 0)
        return [PlannedRuns(*key, n_tasks) for key, n_tasks in total.items()]

    def _choices(self, score: ScoreOn, score_other: ScoreOn) -> tuple[Tuning, Tuning | None]:
        """Return the choice, and the other search's if the regret is measured."""
        if not self.joint:
            return choose(self.names, self.grid, lambda settings: score(settings, self.n_tasks), full=self.full), None
        tuning = choose_jointly(self.names, self.grid, score, self.n_tasks, max_calls=self.max_calls)
        if self.regret is None:
            return tuning, None
        grid = replace(self.grid, n_particles=())
        return tuning, choose(self.names, grid, lambda settings: score_other(settings, self.n_tasks))


def _count(most: dict[Setting, int], settings: Sequence[Setting], n_tasks: int) -> list[Cell]:
    """Count the tasks of settings in the place of scoring them, in `most`."""
    # Runs are stored, so a setting that goes on plays only the tasks that it has not played.
    most.update((setting, max(n_tasks, most.get(setting, 0))) for setting in settings)
    # Which settings go on depends on scores, their number does not.
    return [Cell(name, tuned, dict.fromkeys(SCORED, _ALIKE)) for name, tuned in settings]


_ALIKE = Estimate(0.0, None, 1, 1)
