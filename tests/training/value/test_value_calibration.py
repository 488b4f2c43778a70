import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from amc_agents.critics.calibration import AffineCalibration, IsotonicCalibration
from amc_agents.critics.reliability import bin_numbers
from amc_agents.errors import ConfigurationError
from amc_agents.training import critic_calibration as value_calibration
from amc_agents.training.critic_calibration import LEAST_TASKS, States, calibrate, calibration_tasks, states_of
from amc_agents.training.metrics import LABELS, print_metrics
from amc_agents.training.value.rows import TargetRow


def overconfident(n_tasks=60, per_task=10, seed=0):
    """A critic whose values are twice as far apart as they should be, and shifted; outcomes vary much."""
    rng = np.random.default_rng(seed)
    n = n_tasks * per_task
    right = rng.normal(size=n)
    tasks = np.repeat([f"t{i}" for i in range(n_tasks)], per_task)
    return States(2 * right + 1, right + rng.normal(size=n), tasks, np.ones(n))


# --- the error -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["affine", "isotonic"])
def test_an_overconfident_critic_is_corrected(kind):
    states = overconfident()
    calibration, report = calibrate(kind, states)
    right = (states.values - 1) / 2
    assert np.mean(np.abs(calibration(states.values) - right)) < 0.15
    if kind == "affine":
        assert isinstance(calibration, AffineCalibration)
        assert (calibration.slope, calibration.intercept) == pytest.approx((0.5, -0.5), abs=0.1)
    # Values are off by |right + 1|, nearly all of which remains in ten bins.
    assert report.error_before.mean == pytest.approx(np.mean(np.abs(right + 1)), abs=0.15)
    assert report.error_after.mean < 0.25
    for change in (report.error_change, report.squared_change):
        assert change.mean + 4 * change.standard_error < 0
    assert report.error_change.mean == pytest.approx(report.error_after.mean - report.error_before.mean)
    assert (report.n_states, report.n_tasks, report.n_folds, report.kind) == (600, 60, 5, kind)
    assert sum(one.n for one in report.after) == sum(one.n for one in report.before) == 600


def test_no_state_is_predicted_by_a_map_fitted_on_its_task(monkeypatch):
    def memory(kind, values, targets, groups, weights):
        return lambda queried: np.isin(queried, values).astype(float)

    monkeypatch.setattr(value_calibration, "fit_value_calibration", memory)
    task = np.repeat(np.arange(12.0), 5)
    calibration, report = calibrate("affine", States(task, np.zeros(60), task, np.ones(60)))
    assert report.squared_after.mean == 0
    assert calibration(task).tolist() == [1.0] * 60


@pytest.mark.parametrize("kind", ["affine", "isotonic"])
def test_a_state_of_weight_two_counts_as_two_states(kind):
    """All states of a task have the same weight, 1 or 2."""
    once = overconfident(n_tasks=12, per_task=3)
    weights = np.where(np.arange(36) % 6 < 3, 2.0, 1.0)
    twice = States(*(np.repeat(one, weights.astype(int)) for one in once))
    by_weight, by_copies = calibrate(kind, once._replace(weights=weights)), calibrate(kind, twice)
    probe = np.linspace(-5, 5, 50)
    np.testing.assert_allclose(by_weight.calibration(probe), by_copies.calibration(probe), rtol=1e-9)
    for name in ("squared_before", "squared_after", "squared_change"):
        assert tuple(getattr(by_weight.report, name)) == pytest.approx(tuple(getattr(by_copies.report, name))), name


def test_a_model_of_tilted_means_is_calibrated_to_tilted_means():
    """With the weights exp(G / beta) of the loss, values that are tilted means are calibrated already."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, size=40_000)
    came = (rng.random(40_000) < p).astype(float)
    tilt = np.exp(came / 0.5)
    right = p * np.exp(2) / (p * np.exp(2) + 1 - p)
    states = States(right, came, np.arange(40_000) % 400, tilt)
    calibration, report = calibrate("affine", states)
    assert (calibration.slope, calibration.intercept) == pytest.approx((1.0, 0.0), abs=0.03)
    assert report.error_before.mean == pytest.approx(report.noise_floor, rel=0.6)
    assert calibrate("affine", states._replace(weights=np.ones(40_000))).report.error_before.mean > 0.2


def test_the_error_of_calibrated_values_is_the_noise_floor():
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(40):
        values = rng.normal(size=400)
        states = States(values, values + rng.normal(size=400), np.arange(400) % 40, np.ones(400))
        report = calibrate("affine", states).report
        errors.append((report.error_before.mean, report.noise_floor))
    error, floor = np.mean(errors, axis=0)
    assert floor == pytest.approx(np.sqrt(2 / np.pi / 40), rel=0.05)
    assert error == pytest.approx(floor, rel=0.07)


def test_copies_of_states_do_not_reduce_standard_errors():
    states = overconfident(per_task=3)
    copies = States(*(np.repeat(one, 8) for one in states))
    few, many = calibrate("affine", states).report, calibrate("affine", copies).report
    for name in ("error_before", "error_after", "error_change", "squared_before", "squared_after", "squared_change"):
        assert tuple(getattr(many, name)) == pytest.approx(tuple(getattr(few, name)), rel=1e-9), name


def test_the_standard_error_is_that_of_leaving_one_task_out():
    values, targets, tasks, _ = states = overconfident(n_tasks=7, per_task=9)
    bins = bin_numbers(values)

    def error(kept):
        gaps = [abs((values - targets)[kept & (bins == one)].sum()) for one in np.unique(bins)]
        return sum(gaps) / kept.sum()

    left = np.array([error(tasks != one) for one in np.unique(tasks)])
    report = calibrate("affine", states).report
    assert report.error_before.mean == pytest.approx(error(np.full(len(values), True)))
    assert report.error_before.standard_error == pytest.approx(np.sqrt(6 / 7 * np.sum((left - left.mean()) ** 2)))


def test_the_report_is_json_and_deterministic():
    first, again = calibrate("isotonic", overconfident(), seed=3), calibrate("isotonic", overconfident(), seed=3)
    assert first == again
    assert isinstance(first.calibration, IsotonicCalibration)
    plain = json.loads(json.dumps(first.report.as_plain()))
    assert plain["error_after"] == {
        "mean": first.report.error_after.mean, "standard_error": first.report.error_after.standard_error,
    }  # fmt: skip
    assert plain["before"][0]["n"] == first.report.before[0].n


def test_the_report_is_printed_with_the_metrics():
    report = calibrate("affine", overconfident()).report
    written = io.StringIO()
    metrics = {**dict.fromkeys(LABELS), "auc_by_step": {}, "calibration": report.as_plain()}
    print_metrics(metrics, Console(file=written, width=120))
    text = written.getvalue()
    for name in ("before", "after", "change"):
        mean, error = getattr(report, f"error_{name}")
        assert f"{mean:.3f} ± {error:.3f}" in text
    assert f"error of about {report.noise_floor:.3f}" in text
    assert "affine calibration, cross-validated over 60 tasks" in text


@pytest.mark.parametrize("n_tasks", [1, LEAST_TASKS - 1])
def test_too_few_tasks_are_refused(n_tasks):
    with pytest.raises(ConfigurationError, match=f"states of {n_tasks} tasks and needs 3"):
        calibrate("affine", overconfident(n_tasks))
    assert calibrate("affine", overconfident(LEAST_TASKS)).report.n_folds == LEAST_TASKS


# --- which states --------------------------------------------------------------------------------------------------


def test_some_held_out_tasks_are_only_for_calibration():
    held_out = [f"t{i}" for i in range(20)]
    chosen = calibration_tasks(held_out, seed=0)
    assert len(chosen) == 10
    assert chosen < set(held_out)
    assert calibration_tasks(held_out[::-1] * 2, seed=0) == chosen != calibration_tasks(held_out, seed=1)
    assert len(calibration_tasks(held_out[:4], seed=0)) == LEAST_TASKS
    with pytest.raises(ConfigurationError, match="3 tasks are held out, but a calibration needs 3"):
        calibration_tasks(held_out[:3], seed=0)


ROW = TargetRow(
    ids=(1, 2, 3, 4), marks=(1, 3), states=(0, 1), targets=(1.0, 0.0), final=(False, True), success=True,
    weights=(1.0, 1.0),
)  # fmt: skip


def test_a_model_of_the_future_is_not_calibrated_on_final_states():
    rows = [ROW, replace(ROW, targets=(0.5, 0.25), final=(False, False))]
    values = [np.array([0.9, 0.1]), np.array([0.6, 0.3])]
    states = states_of(rows, values, ["a", "b"], target="future")
    assert [array.tolist() for array in states] == [[0.9, 0.6, 0.3], [1.0, 0.5, 0.25], ["a", "b", "b"], [1.0] * 3]
    states = states_of(rows, values, ["a", "b"], target="return")
    everything = [[0.9, 0.1, 0.6, 0.3], [1.0, 0.0, 0.5, 0.25], ["a", "a", "b", "b"], [1.0] * 4]
    assert [array.tolist() for array in states] == everything


def test_the_weights_of_the_loss_are_kept_and_stay_positive():
    rows = [ROW, replace(ROW, weights=(0.0, 4.0))]
    states = states_of(rows, [np.zeros(2)] * 2, ["a", "b"], target="return")
    assert states.weights.tolist() == [1.0, 1.0, 4e-12, 4.0]
