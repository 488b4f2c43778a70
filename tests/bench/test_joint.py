"""Successive halving over all combinations of a method's settings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from amc_agents.bench.methods import AMC, AMC_HIDDEN, BEST_OF_N, REACT, SMC, Tuned
from amc_agents.bench.statistics import Estimate
from amc_agents.bench.tuned import Cell, Tuning, method_of, read_tuning, retuned
from amc_agents.bench.tuning import Grid, choose, choose_jointly, combinations, regret_of, rounds
from amc_agents.errors import ConfigurationError

GRID = Grid(temperatures=(0.5, 0.7, 1.0), steps=((4, 8), (6,), (2, 4, 6)), betas=(0.05, 0.1, 0.2))


def cell(name, tuned, worth, n=5, calls=100.0):
    scores = {metric: Estimate(worth, 0.0, n, 1) for metric in ("oracle", "deployable", "top5", "mean")}
    return Cell(name, tuned, scores, calls, {(str(task), 0): worth for task in range(n)})


def scored(worth, asked=None, calls=lambda tuned: 100.0):
    def score(settings, n):
        if asked is not None:
            asked.append((len(settings), n))
        return [cell(name, tuned, worth(tuned), n, calls(tuned)) for name, tuned in settings]

    return score


@pytest.mark.parametrize(
    ("n_tasks", "expected"), [(1, [1]), (6, [6]), (17, [6, 17]), (60, [7, 20, 60]), (200, [8, 23, 67, 200])]
)
def test_each_round_has_three_times_as_many_tasks(n_tasks, expected):
    assert rounds(n_tasks) == expected


def test_a_third_goes_on_and_the_best_that_played_all_tasks_is_chosen():
    asked = []

    def worth(tuned):
        return tuned.temperature + 0.1 * len(tuned.steps) - tuned.beta

    found = choose_jointly([AMC], GRID, scored(worth, asked), 60)
    assert asked == [(27, 7), (9, 20), (3, 60)]
    assert found.best[AMC].tuned == Tuned(1.0, (2, 4, 6), 0.05)
    assert found.best[AMC].pick.tasks == 60
    assert len(found.tried) == 27


def test_a_lucky_start_on_few_tasks_does_not_win():
    """The best of the first round is the worst of those that go on to all tasks."""
    lucky, good = Tuned(0.5, (6,), 0.05), Tuned(1.0, (4, 8), 0.1)

    def score(settings, n):
        worth = {lucky: 9.0 if n < 20 else 0.1, good: 0.5}
        return [cell(name, tuned, worth.get(tuned, 0.0), n) for name, tuned in settings]

    assert choose_jointly([AMC], GRID, score, 20).best[AMC].tuned == good


def test_settings_that_are_good_only_together_are_found():
    """One setting after the other stays at its start: each change alone is worse."""
    together = Tuned(1.0, (6,), 0.2)
    ordinary = {0.5: 0.3, 0.7: 0.2, 1.0: 0.0}

    def worth(tuned):
        return 1.0 if tuned == together else ordinary[tuned.temperature]

    one_by_one = choose([AMC], GRID, lambda settings: scored(worth)(settings, 20))
    jointly = choose_jointly([AMC], GRID, scored(worth), 20)
    assert one_by_one.best[AMC].tuned.temperature == 0.5
    assert jointly.best[AMC].tuned == together
    lost = regret_of(jointly.best, one_by_one.best, scored(worth), 8)
    assert lost[AMC].difference == pytest.approx(0.7)
    assert (lost[AMC].tasks, regret_of(jointly.best, jointly.best, scored(worth), 8)) == (8, {})


def test_several_n_are_compared_within_a_number_of_calls():
    grid = Grid(**{**GRID.__dict__, "n_particles": (5, 10, 20)})

    def size(tuned):
        return float(tuned.n_particles or 1)

    found = choose_jointly([AMC, BEST_OF_N, REACT], grid, scored(size, calls=lambda t: 20 * size(t)), 20, max_calls=250)
    assert {name: best.tuned.n_particles for name, best in found.best.items()} == {AMC: 10, BEST_OF_N: 10, REACT: None}
    assert method_of(AMC, found.best[AMC].tuned).n_particles == 10
    assert retuned([method_of(AMC, Tuned())], {}) == [method_of(AMC, Tuned())]
    with pytest.raises(ConfigurationError, match="expected max_calls"):
        choose_jointly([AMC], grid, scored(size), 20)
    with pytest.raises(ConfigurationError, match="cheapest setting makes 100: allow more, or try fewer particles"):
        choose_jointly([AMC], grid, scored(size, calls=lambda t: 20 * size(t)), 20, max_calls=50)


def test_eq_5_is_among_the_combinations_where_the_return_of_success_is_known():
    grid = Grid(**{**GRID.__dict__, "success_reward": 2.0})
    with_success = [tuned for _, tuned in combinations(AMC_HIDDEN, grid) if tuned.success_reward]
    assert len(with_success) == 3 * 3 * len(grid.soft_betas)
    assert not any(tuned.success_reward for _, tuned in combinations(SMC, grid))
    assert len(set(combinations(AMC, grid))) == len(combinations(AMC, grid)) == 3 * 3 * 5


def test_the_best_of_27_noisy_settings_is_often_found():
    """It succeeds in .5 of the tasks and the other 26 in .3: a coin would find it in a 27th of the repetitions."""
    best = Tuned(1.0, (6,), 0.1)

    def found_in(rng):
        draws = {}

        def score(settings, n):
            for _, tuned in settings:
                draws.setdefault(tuned, rng.random(60) < (0.5 if tuned == best else 0.3))
            return [cell(name, tuned, draws[tuned][:n].mean(), n) for name, tuned in settings]

        return choose_jointly([AMC], GRID, score, 60).best[AMC].tuned == best

    rng = np.random.default_rng(3)
    # The rate is .53 (1,500 repetitions): of 100, more than 25 with a probability of 1 - 1e-8.
    assert sum(found_in(rng) for _ in range(100)) > 25


def test_the_file_keeps_n_the_calls_and_the_regret(tmp_path):
    sized = cell(AMC, Tuned(0.5, (6,), 0.1, n_particles=7), 0.5)
    plain = cell(REACT, Tuned(0.5), 0.2)
    lost = regret_of({AMC: sized}, {AMC: cell(AMC, Tuned(), 0.1)}, scored(lambda tuned: tuned.temperature), 4)
    told = Tuning([sized, plain], {AMC: sized, REACT: plain}, lost)
    told.save(tmp_path / "tuning.json", "amc tune", {})
    stored = json.loads((tmp_path / "tuning.json").read_text())
    assert stored["chosen"][AMC]["n_particles"] == 7
    assert "n_particles" not in stored["chosen"][REACT]
    assert stored["chosen"][AMC]["policy_calls"] == 100
    again, _ = read_tuning(tmp_path / "tuning.json")
    assert again.best == told.best
    assert again.regret == lost
