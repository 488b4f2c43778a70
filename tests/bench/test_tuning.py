from __future__ import annotations

import json

import pytest

from amc_agents.bench import crafting
from amc_agents.bench.methods import (
    AMC,
    AMC_HIDDEN,
    BEST_OF_N,
    REACT,
    SMC,
    Tuned,
    amc,
    amc_hidden,
    best_of_n,
    react,
    react_greedy,
)
from amc_agents.bench.report import Results
from amc_agents.bench.selection import MethodChanges
from amc_agents.bench.statistics import Estimate
from amc_agents.bench.tuned import Cell, config_text, read_chosen, retuned
from amc_agents.bench.tuning import Grid, choose, tune
from amc_agents.config import Config
from amc_agents.envs.registry import world
from amc_agents.errors import ConfigurationError
from amc_agents.smc import AtSteps, Never

GRID = Grid(temperatures=(0.5, 1.0), steps=((4, 8), (6,), (2, 4, 6)), betas=(0.05, 0.1, 0.2))


def cell(name, tuned, pick, top5=0.0, mean=0.0):
    scores = {"oracle": pick, "deployable": pick, "top5": top5, "mean": mean}
    return Cell(name, tuned, {metric: Estimate(score, 0.0, 5, 1) for metric, score in scores.items()})


def scored(worth, asked=None):
    def score(wanted):
        if asked is not None:
            asked.append(wanted)
        return [cell(name, tuned, worth(tuned)) for name, tuned in wanted]

    return score


def test_each_setting_is_chosen_with_the_best_of_the_others_so_far():
    asked = []
    worth = {0.5: 0.0, 1.0: 1.0}

    def value(tuned):
        return worth[tuned.temperature] + (tuned.steps == (6,)) + (tuned.beta == 0.2)

    best = choose([AMC], GRID, scored(value, asked)).best[AMC].tuned
    assert (best.temperature, best.steps, best.beta) == (1.0, (6,), 0.2)
    starts, steps, betas = ([tuned for _, tuned in stage] for stage in asked)
    # Two starts: a plain one, and the most resampling with the smallest beta.
    assert {(one.steps, one.beta) for one in starts} == {((4, 8), 0.1), ((2, 4, 6), 0.05)}
    assert {one.temperature for one in starts} == {0.5, 1.0}
    assert [one.steps for one in steps] == list(GRID.steps)
    assert {one.temperature for one in steps} == {1.0}
    assert {one.steps for one in betas} == {(6,)}


def test_eq_5_is_tried_where_the_return_of_success_is_known():
    grid = Grid(**{**GRID.__dict__, "success_reward": 2.0})
    best = choose([AMC], grid, scored(lambda tuned: (tuned.success_reward or 0) * tuned.beta)).best[AMC].tuned
    assert (best.success_reward, best.beta) == (2.0, 0.4)
    without = choose([AMC], GRID, scored(lambda tuned: float(tuned.success_reward is not None)))
    assert all(cell.tuned.success_reward is None for cell in without.tried)
    # SMC has no critic whose prediction could be a probability.
    uncritical = choose([SMC], grid, scored(lambda tuned: float(tuned.success_reward is not None)))
    assert all(cell.tuned.success_reward is None for cell in uncritical.tried)


def test_every_combination_where_that_is_asked_for():
    worth = {(0.5, (6,), 0.05): 1.0}
    found = choose(
        [AMC, REACT], GRID, scored(lambda one: worth.get((one.temperature, one.steps, one.beta), 0.0)), full=True
    )
    assert len(found.tried) == 2 * 3 * 3 + 2
    assert found.best[AMC].tuned == Tuned(0.5, (6,), 0.05)


def test_pick_and_top_5_count_alike_and_the_mean_breaks_ties():
    one, other = Tuned(0.5), Tuned(1.0)
    assert cell(AMC, one, 0.4, 0.8).merit > cell(AMC, other, 0.9, 0.2).merit
    assert cell(AMC, one, 0.5, 0.5, 0.3).merit > cell(AMC, other, 0.6, 0.4, 0.2).merit


def test_schedules_are_those_of_the_horizon():
    assert Grid.of_horizon(20).steps == Grid().steps
    assert (2, 4, 6) in Grid.of_horizon(10).steps
    assert all(1 <= step < 50 for steps in Grid.of_horizon(50).steps for step in steps)
    assert Grid.of_horizon(2).steps  # all are whole steps from 1, and distinct
    for steps in Grid.of_horizon(2).steps:
        AtSteps(*steps)


@pytest.mark.thorough
def test_tuning_a_users_comparison(make_comparison, tmp_path):
    comparison = make_comparison(n_tasks=3, methods=[react(), best_of_n(), amc(Tuned(steps=(2,)))])
    grid = Grid(temperatures=(0.0, 1.0), steps=((1,), (2,)), betas=(0.1,))
    found = tune(comparison, tmp_path, grid=grid)
    # These coins fall on 1 at temperature 0, which alone wins always.
    assert found.best[REACT].tuned.temperature == 0.0
    assert found.best[BEST_OF_N].scores["top5"].mean == 1.0
    lines = (tmp_path / "records.jsonl").read_text()
    again = tune(comparison, tmp_path, grid=grid)
    assert (tmp_path / "records.jsonl").read_text() == lines  # nothing was run again
    assert again.best == found.best
    with pytest.raises(ConfigurationError, match="n_particles"):
        tune(make_comparison(n_tasks=3, methods=[react()], n_particles=5), tmp_path, grid=grid)


def test_a_method_that_cannot_be_tuned_is_refused(make_comparison, tmp_path):
    comparison = make_comparison()
    with pytest.raises(ConfigurationError, match="cannot tune react-greedy; choose from: react, best-of-n"):
        tune(comparison, tmp_path)


def test_changes_leave_greedy_play_its_temperature_and_a_single_trajectory_its_beta():
    changes = MethodChanges(temperature=0.5, beta=0.3, resample=AtSteps(4), success_reward=2.0)
    greedy, plain, searching = map(changes.applied_to, (react_greedy(), react(), amc(Tuned(steps=(2,)))))
    assert [method.temperature for method in (greedy, plain, searching)] == [0.0, 0.5, 0.5]
    assert [method.beta for method in (greedy, plain, searching)] == [1.0, 1.0, 0.3]
    assert (plain.resample, searching.resample, searching.success_reward) == (Never(), AtSteps(4), 2.0)


def test_methods_get_the_chosen_settings():
    told = retuned([react(), best_of_n(), amc(Tuned()), amc_hidden(Tuned())], {AMC: Tuned(0.7, (3,), 0.2)})
    assert [one.temperature for one in told] == [1.0, 1.0, 0.7, 0.7]
    assert told[3].name == AMC_HIDDEN
    assert told[3].hide_rewards
    assert told[3].resample == AtSteps(3)


def test_a_method_that_ends_at_a_success_has_the_settings_of_the_one_that_goes_on():
    given = crafting.search_methods(success=0.5)[2:]
    parallel, searching = retuned(given, {AMC: Tuned(0.7, (3,), 0.2), BEST_OF_N: Tuned(0.9)})
    assert (parallel.name, parallel.temperature, parallel.resample) == ("best-of-n-stop", 0.9, Never())
    assert (searching.name, searching.temperature, searching.resample) == ("amc-stop", 0.7, AtSteps(3))
    assert [(one.label, one.critic, one.stop_at, one.hide_rewards) for one in (parallel, searching)] == [
        (one.label, one.critic, 0.5, False) for one in given
    ]


def test_the_written_configuration_file_can_be_loaded(tmp_path):
    text = config_text(
        Tuned(0.7, (3, 6), 0.05, 1.0), critic='embedded:a?adapter="b"', n_particles=7, horizon=9, comment="x"
    )
    (tmp_path / "amc.toml").write_text(text)
    config = Config.load(tmp_path / "amc.toml")
    assert config.critic == 'embedded:a?adapter="b"'
    assert config.amc.model_dump(exclude_none=True) == {
        "n_particles": 7, "resample": {"at_steps": [3, 6]}, "beta": 0.05, "success_reward": 1.0, "horizon": 9,
    }  # fmt: skip
    assert "temperature of the model that acts: 0.7" in text


@pytest.mark.thorough
def test_bench_uses_the_settings_that_tune_chose(command, tmp_path):
    given = ["--tasks", 2, "--particles", 2, "--band", 2, 3, "--workers", 1]
    code, _, err = command("tune", "--out", tmp_path / "t", "--temperatures", "0.3,0.9", *given)
    assert code == 0, err
    chosen = read_chosen(tmp_path / "t" / "tuning.json")
    assert set(chosen) == {REACT, BEST_OF_N, AMC}
    assert chosen[AMC].temperature in (0.3, 0.9)
    table = json.loads((tmp_path / "t" / "tuning.json").read_text())
    assert table["command"].startswith("amc tune --out")
    assert table["settings"]["split"] == "train"
    assert table["settings"]["first_task"] == world("crafting").unseen_from
    assert Config.load(tmp_path / "t" / "amc.toml").amc.beta == chosen[AMC].beta
    tuned = tmp_path / "t" / "tuning.json"
    code, _, err = command("bench", "--out", tmp_path / "b", "--tuned", tuned, "--methods", "amc,amc-hidden", *given)
    assert code == 0, err
    results = Results.model_validate_json((tmp_path / "b" / "results.json").read_text())
    for method in results.methods:
        assert method.settings["temperature"] == chosen[AMC].temperature
        assert method.settings["resample"] == repr(chosen[AMC].schedule)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--methods", "react,vote"], "cannot tune vote; choose from: react, best-of-n"),
        (["--temperatures", "warm"], "--temperatures takes numbers, as in 0.4,0.6,0.8; got 'warm'"),
        (["--temperatures", "0,1"], "above 0"),
        (["--success-reward", "0"], "must be above 0, got 0"),
        (["--critic", "uniform", "--methods", "amc-hidden"], "amc-hidden: the critic must predict the whole return"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(command, tmp_path, arguments, told):
    code, _, err = command("tune", "--out", tmp_path / "t", *arguments)
    assert code == 2
    assert told in err
    assert not (tmp_path / "t").exists()


def test_a_file_that_is_not_a_tuning_is_refused(command, tmp_path):
    (tmp_path / "other.json").write_text('{"methods": []}')
    for path, told in (("other.json", "expected the tuning.json that `amc tune` writes"), ("none.json", "No such")):
        code, _, err = command("bench", "--out", tmp_path / "b", "--tuned", tmp_path / path)
        assert code == 2
        assert told in err
