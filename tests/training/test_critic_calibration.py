"""Calibrating any critic to the outcomes of a dataset: what is gained, on made-up critics with a known answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from amc_agents import AmcSettings, AtSteps, amc
from amc_agents.critics.calibration import (
    FILE,
    CalibratedCritic,
    LogisticCalibration,
    calibration_from_json,
    fit_value_calibration,
)
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.uses import nature_of
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError
from amc_agents.training.critic_calibration import CalibrationStates, calibrate_critic, cross_fitted
from amc_agents.training.dataset import LoggedTrajectory, dataset_hash, write_shard
from amc_agents.types import Step, Task, Trajectory
from tests.population.worlds import number_agent, start, sum_world

MODULE = "tests.training.test_critic_calibration"


class FromText:
    """The number in the newest observation, through a map that a calibration can undo."""

    predicts = "return"

    def __init__(self, change):
        self.change = change

    def values(self, trajectories):
        return [self.change(float(each.steps[-1].observation) if each.steps else 0.0) for each in trajectories]


overconfident = FromText(lambda logit: 10 * logit + 3)
steep = FromText(lambda logit: 1 / (1 + np.exp(-logit)) ** 3)
honest = FromText(lambda logit: 1 / (1 + np.exp(-logit)))


class Patient:
    """The number of steps."""

    predicts = "return"

    def values(self, trajectories):
        return [float(len(each.steps)) for each in trajectories]


patient = Patient()
future = FromText(lambda logit: logit)
future.predicts = "future"


def broken(trajectories):
    return [np.nan for _ in trajectories]


def states_of(n_tasks, rng, per_task=20):
    logits = rng.normal(size=n_tasks * per_task)
    outcomes = (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(float)
    return logits, outcomes, np.repeat(np.arange(n_tasks), per_task)


@pytest.fixture
def data(tmp_path):
    """120 runs of 30 tasks whose observations contain the log-odds of their success."""
    rng, records = np.random.default_rng(0), []
    for number in range(30):
        for group in range(4):
            logit = rng.normal()
            outcome = float(rng.random() < 1 / (1 + np.exp(-logit)))
            steps = (Step("look", f"{logit:.6f}"), Step("wait", f"{logit:.6f}", reward=outcome))
            records.append(LoggedTrajectory(Trajectory(Task(f"t{number}", "go"), steps, done=True), group))
    unfinished = replace(records[0].trajectory, done=False)
    unknown = replace(records[0].trajectory, steps=(Step("look", "9.0", reward=float("nan")),))
    write_shard(tmp_path / "data", [*records, *(LoggedTrajectory(each, 9) for each in (unfinished, unknown))])
    return tmp_path / "data"


def test_a_wrong_scale_is_corrected_and_the_critic_is_loaded_by_its_string(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gain = calibrate_critic(f"{MODULE}:overconfident", "data", "mine")
    assert gain.helps
    assert gain.kind == "logistic"
    assert gain.squared_after.mean < 0.26 < 1 < gain.squared_before.mean
    assert gain.log_loss_change.high < 0
    assert gain.auc_after.mean == pytest.approx(gain.auc_before.mean, abs=0.03)
    assert (gain.n_tasks, gain.n_states) == (30, 120 * 3)
    assert gain.sentence.startswith("Calibration helps: it changes the squared error by -")
    made = parse_critic("calibrated:mine")
    assert isinstance(made, CalibratedCritic)
    assert (nature_of(made), made.predicts) == ("value", "return")
    saved = json.loads((tmp_path / "mine" / FILE).read_text())
    assert saved["critic"] == f"{MODULE}:overconfident"
    assert saved["report"]["sentence"] == gain.sentence


async def test_calibrated_values_are_the_map_of_the_critics(data, tmp_path):
    calibrate_critic(f"{MODULE}:overconfident", data, tmp_path / "mine")
    critic = parse_critic(f"calibrated:{tmp_path / 'mine'}")
    await critic.connect()  # type: ignore[attr-defined]
    states = [Trajectory(Task("t", "go"), (Step("a", text),)) for text in ("-1.5", "0", "2")]
    values = await critic.values(states)
    # The map undoes the scale: a value is about the probability whose log-odds the state shows.
    assert values == pytest.approx(1 / (1 + np.exp([1.5, 0.0, -2.0])), abs=0.15)


def test_a_run_uses_it(data, tmp_path):
    calibrate_critic(f"{MODULE}:patient", data, tmp_path / "mine")
    critic = f"calibrated:{tmp_path / 'mine'}"
    graph = amc(
        number_agent(),
        critic,
        environment=sum_world,
        n_particles=2,
        resample=AtSteps(1),
        settings=AmcSettings(hide_rewards=True),
    )
    run = graph.run(start())
    assert run.config["critic"] == critic
    values = asyncio.run(parse_critic(critic).values(run.population.trajectories))
    assert run.history[-1].values.tolist() == pytest.approx(values.tolist())


def test_a_critic_of_the_future_is_fitted_without_the_ends(data, tmp_path):
    gain = calibrate_critic(f"{MODULE}:future", data, tmp_path / "mine", kind="isotonic")
    assert (gain.kind, gain.n_states) == ("isotonic", 120 * 2)


def test_a_calibrated_critic_gains_nothing_more(data, tmp_path):
    gain = calibrate_critic(f"{MODULE}:honest", data, tmp_path / "mine")
    assert not gain.helps
    assert gain.sentence.split(":")[0] in ("No gain is certain", "Calibration harms")
    assert calibrate_critic(f"{MODULE}:steep", data, tmp_path / "steep").squared_change.mean < 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("critic", "kind", "message"),
    [
        (f"{MODULE}:broken", "auto", "answered nan"),
        (f"{MODULE}:honest", "spline", "kind is 'spline'"),
        ("calibrated:CALIBRATED", "auto", "is calibrated already"),
        ("goal:missing", "auto", "missing"),
    ],
)
def test_critics_that_cannot_be_calibrated_are_refused(data, tmp_path, critic, kind, message):
    calibrate_critic(f"{MODULE}:honest", data, tmp_path / "calibrated")
    critic = critic.replace("CALIBRATED", str(tmp_path / "calibrated"))
    with pytest.raises((ConfigurationError, CriticError, CheckpointError), match=message):
        calibrate_critic(critic, data, tmp_path / "out", kind=kind)


def test_a_model_of_eq_5_and_a_critic_of_these_data_are_refused(data, tmp_path, monkeypatch):
    checkpoint = SimpleNamespace(data_hash=dataset_hash(data))
    with monkeypatch.context() as patch:
        patch.setattr(FromText, "checkpoint", checkpoint, raising=False)
        with pytest.raises(ConfigurationError, match=r"was trained on .*--calibration"):
            calibrate_critic(f"{MODULE}:honest", data, tmp_path / "out")
    monkeypatch.setattr(FromText, "beta", 0.5, raising=False)
    with pytest.raises(ConfigurationError, match=r"was trained by eq\. 5"):
        calibrate_critic(f"{MODULE}:honest", data, tmp_path / "out")


def test_too_few_tasks_or_outcomes_are_refused():
    values, outcomes, tasks = states_of(5, np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match=r"at least 6 tasks.*got 5 tasks"):
        cross_fitted(CalibrationStates(values, outcomes, tasks))
    values, outcomes, tasks = states_of(9, np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match="1 outcomes"):
        cross_fitted(CalibrationStates(values, np.ones_like(outcomes), tasks))


def test_the_map_is_chosen_by_its_error_on_other_tasks():
    rng = np.random.default_rng(1)
    values, outcomes, tasks = states_of(60, rng)
    assert cross_fitted(CalibrationStates(values, outcomes, tasks))[0] == "logistic"
    # Outcomes that jump at a value are no logistic curve.
    jumps = (np.where(values > 0.3, 0.9, 0.1) > rng.random(len(values))).astype(float)
    assert cross_fitted(CalibrationStates(values, jumps, tasks))[0] == "isotonic"
    assert cross_fitted(CalibrationStates(values, 3 * values + rng.normal(size=len(values)), tasks))[0] == "affine"


def test_cross_fitted_values_come_from_maps_of_other_tasks():
    values, outcomes, tasks = states_of(10, np.random.default_rng(2), per_task=4)
    _, _, after = cross_fitted(CalibrationStates(values, outcomes, tasks), "affine")
    # Every value of a task changes if another task's outcomes do; its own outcomes do not matter.
    other = outcomes.copy()
    other[tasks == 3] = 1 - other[tasks == 3]
    _, _, changed = cross_fitted(CalibrationStates(values, other, tasks), "affine")
    assert changed[tasks == 3].tolist() == after[tasks == 3].tolist()
    assert (changed != after).any()


def test_the_logistic_map_has_the_greatest_likelihood():
    values, outcomes, tasks = states_of(80, np.random.default_rng(3))
    fitted = fit_value_calibration("logistic", 5 * values + 2, outcomes, tasks)
    assert isinstance(fitted, LogisticCalibration)
    # The truth is sigmoid(v) of the value before its change.
    assert 5 * fitted.slope == pytest.approx(1.0, abs=0.15)
    assert fitted.intercept + 2 * fitted.slope == pytest.approx(0.0, abs=0.15)

    def loss(slope, intercept):
        chance = LogisticCalibration(slope, intercept, 0, 1)(5 * values + 2)
        return -np.mean(np.log(np.where(outcomes == 1, chance, 1 - chance)))

    best = loss(fitted.slope, fitted.intercept)
    for slope, intercept in ((1.1, 0), (0.9, 0), (1, 0.1), (1, -0.1)):
        assert loss(fitted.slope * slope, fitted.intercept + intercept) > best
    assert calibration_from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


def test_a_logistic_map_never_falls_and_needs_two_outcomes():
    values, outcomes, tasks = states_of(20, np.random.default_rng(4))
    falling = fit_value_calibration("logistic", -values, outcomes, tasks)
    assert falling(np.array([-3.0, 3.0])) == pytest.approx(outcomes.mean(), abs=0.01)
    perfect = fit_value_calibration("logistic", outcomes, 5 - 2 * (1 - outcomes), tasks)
    assert 3 < perfect(np.array([0.0]))[0] < 3.1
    with pytest.raises(ConfigurationError, match="exactly two values, got"):
        fit_value_calibration("logistic", values, values, tasks)
    for wrong in ({"slope": -1.0}, {"low": 1.0}, {"intercept": float("nan")}):
        with pytest.raises(CheckpointError, match="a logistic calibration has slope"):
            LogisticCalibration(**{"slope": 1.0, "intercept": 0.0, "low": 0.0, "high": 1.0, **wrong})


@pytest.mark.parametrize("damage", [None, "{", '{"kind": "amc-calibration", "version": 1}', "wrong map"])
def test_a_missing_or_damaged_file_is_named(data, tmp_path, damage):
    if damage == "wrong map":
        calibrate_critic(f"{MODULE}:honest", data, tmp_path)
        saved = json.loads((tmp_path / FILE).read_text())
        damage = json.dumps({**saved, "calibration": {"kind": "affine", "slope": -1.0, "intercept": 0.0}})
    if damage is not None:
        (tmp_path / FILE).write_text(damage)
    with pytest.raises(CheckpointError, match=FILE):
        parse_critic(f"calibrated:{tmp_path}")


@pytest.mark.thorough
def test_the_command_prints_what_was_gained(command, data, tmp_path):
    run = partial(command, "calibrate", f"{MODULE}:overconfident", "--data", data)
    code, printed, error = run("--out", tmp_path / "mine")
    assert (code, error) == (0, "")
    words = " ".join(printed.split())
    for part in (
        "Calibration helps",
        "squared error, change",
        "log loss, before",
        "AUC at the same step, after",
        "cross-fitted",
    ):
        assert part in words
    assert f"calibrated:{tmp_path / 'mine'}" in printed
    told = json.loads(run("--out", tmp_path / "machine", "--json")[1])
    assert told["helps"]
    assert told["squared_after"]["mean"] < told["squared_before"]["mean"]
    code, _, error = run("--out", tmp_path / "other", "--kind", "spline")
    assert code == 2
