"""The runs of a search for settings, counted before any is played."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amc_agents.bench.methods import AMC, BEST_OF_N, REACT
from amc_agents.bench.statistics import Estimate
from amc_agents.bench.tuned import Cell
from amc_agents.bench.tuning import Grid, TuningSearch
from amc_agents.errors import ConfigurationError

GRID = Grid(temperatures=(0.5, 0.7, 1.0), steps=((4, 8), (6,), (2, 4, 6)), betas=(0.05, 0.1, 0.2), success_reward=1.0)


def carried_out(search, seed=0):
    """Return the tuning, and the (setting, task) pairs that were played: the search's, and the check's."""
    rng = np.random.default_rng(seed)
    played, checked = set(), set()

    def score_in(pairs):
        def score(settings, n):
            pairs.update((setting, task) for setting in settings for task in range(n))
            scores = {setting: Estimate(rng.random(), None, n, 1) for setting in settings}
            return [
                Cell(name, tuned, dict.fromkeys(("oracle", "deployable", "top5", "mean"), scores[name, tuned]), 100.0,
                     {(str(task), 0): rng.random() for task in range(n)})
                for name, tuned in settings
            ]  # fmt: skip

        return score

    return search.carry_out(score_in(played), score_in(checked)), played, checked


@pytest.mark.parametrize("how", [{}, {"full": True}, {"joint": True}])
@pytest.mark.parametrize("seed", range(3))
def test_as_many_runs_are_planned_as_a_search_makes(how, seed):
    search = TuningSearch((REACT, BEST_OF_N, AMC), GRID, 20, **how)
    _, played, _ = carried_out(search, seed)
    expected = {name: sum(setting[0] == name for setting, _ in played) for name in search.names}
    planned = {runs.method: runs.n_runs for runs in search.planned(1)}
    if how:
        assert planned == expected
        return
    # One setting after the other: depending on scores, the last two stages can meet a setting that was played.
    assert expected[AMC] <= planned.pop(AMC) <= expected.pop(AMC) + 20 * 2
    assert planned == expected


def test_several_n_are_planned_apart():
    search = TuningSearch((BEST_OF_N,), Grid(temperatures=(0.5, 1.0), n_particles=(4, 8)), 6, joint=True, max_calls=999)
    assert sorted(search.planned(1)) == [(BEST_OF_N, 4, 2 * 6), (BEST_OF_N, 8, 2 * 6)]


def test_the_other_search_and_the_check_are_planned_too():
    search = TuningSearch((AMC,), GRID, 20, joint=True, regret=9)
    (planned,) = search.planned(1)
    for seed in range(20):
        tuning, played, checked = carried_out(search, seed)
        assert len(checked) == (2 * 9 if tuning.regret else 0)
        # The other search tries at most 12 settings, and shares the runs of those that both try.
        assert len(played) + 2 * 9 <= planned.n_runs <= len(played) + 2 * 9 + 20 * 12
    (with_more,) = replace(search, regret=19).planned(1)
    assert with_more.n_runs - planned.n_runs == 2 * 10


def test_a_search_needs_tasks():
    with pytest.raises(ConfigurationError, match="needs training tasks, got 0"):
        TuningSearch((AMC,), GRID, 0)
