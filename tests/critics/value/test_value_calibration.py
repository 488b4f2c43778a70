"""From scores to values: link, calibration and file, in every critic with a value model."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.bench.comparison import Comparison, _fingerprint
from amc_agents.bench.methods import Tuned, react
from amc_agents.bench.methods import amc as method_amc
from amc_agents.config import Config
from amc_agents.critics.calibration import (
    AffineCalibration,
    IsotonicCalibration,
    Pool,
    calibration_from_json,
    fit_value_calibration,
    rising_pools,
)
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.critics.value.local import ADAPTER, EmbeddedCritic, shipped_folder
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models import tokenizers as tokenizing
from amc_agents.operations.doctor.patient import critic_scores
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from amc_agents.types import Step, Task, Trajectory
from tests.arguments import arguments
from tests.bench.coins import BitWorld, coins
from tests.critics.value.fake_vllm import FakeVLLM
from tests.population.worlds import number_agent, start, sum_world

SHIPPED = shipped_folder("crafting")
TASK = Task("t", "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate.")
STATES = [Trajectory(TASK, tuple(Step(f"get {i} clay", f"Got {i} clay") for i in range(1, n))) for n in range(1, 6)]
CURVE = IsotonicCalibration((-1.0, 0.25, 2.0), (0.0, 0.5, 0.75))
NUMBERS = st.floats(-100, 100).map(lambda number: round(number, 2))


# --- the maps ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20, unique_by=lambda pair: pair[0]))
def test_isotonic_regression_is_the_min_max_formula(pairs):
    x, y = map(np.array, zip(*sorted(pairs), strict=True))
    n = len(y)
    exact = [max(min(y[a : b + 1].mean() for b in range(i, n)) for a in range(i + 1)) for i in range(n)]
    fitted = fit_value_calibration("isotonic", x, y, np.arange(n))
    assert fitted(x) == pytest.approx(exact, abs=1e-9)
    pools = rising_pools(x, y)
    assert (np.diff([(pool.low, pool.high, pool.centre, pool.height) for pool in pools], axis=0) > 0).all()
    assert all(pool.low <= pool.centre <= pool.high for pool in pools)


def test_points_of_equal_x_are_pooled():
    pools = rising_pools(np.array([2.0, 1.0, 2.0, 1.0]), np.array([1.0, 0.0, 2.0, 1.0]))
    assert pools == [Pool(1.0, 1.0, 1.0, 0.5), Pool(2.0, 2.0, 2.0, 1.5)]


def test_the_line_is_the_least_squares_fit():
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    targets = 0.3 * values - 0.2 + rng.normal(size=200)
    line = fit_value_calibration("affine", values, targets, np.arange(200))
    assert isinstance(line, AffineCalibration)
    assert (line.slope, line.intercept) == pytest.approx(tuple(np.polyfit(values, targets, 1)))


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]])
def test_an_uninformative_critic_becomes_the_mean(values):
    line = fit_value_calibration("affine", np.array(values), np.array([3.0, 2.0, 0.1]), np.arange(3))
    assert line == AffineCalibration(0.0, 1.7)
    curve = fit_value_calibration("isotonic", np.array(values), np.array([3.0, 2.0, 0.1]), np.arange(3))
    assert curve(np.array([-9.0, 9.0])).tolist() == pytest.approx([1.7, 1.7])


def test_isotonic_bends_where_a_line_cannot():
    values = np.linspace(-3, 3, 400)
    targets = (values > 0).astype(float)
    groups = np.arange(400) % 20
    squares = {
        kind: float(np.mean((fit_value_calibration(kind, values, targets, groups)(values) - targets) ** 2))
        for kind in ("affine", "isotonic")
    }
    assert squares["isotonic"] < 0.01 < 0.05 < squares["affine"]


@pytest.mark.parametrize("calibration", [CURVE, AffineCalibration(0.5, -2.0)])
def test_a_calibration_round_trips_through_json(calibration):
    assert calibration_from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"kind": "affine", "slope": -1.0, "intercept": 0.0}, "slope of at least 0"),
        ({"kind": "affine", "slope": math.nan, "intercept": 0.0}, "finite"),
        ({"kind": "isotonic", "value": [0.0, 1.0], "calibrated": [1.0, 0.0]}, "must rise"),
        ({"kind": "isotonic", "value": [1.0, 0.0], "calibrated": [0.0, 1.0]}, "must rise"),
        ({"kind": "isotonic", "value": [0.0, 1.0], "calibrated": [0.0, math.nan]}, "finite"),
        ({"kind": "isotonic", "value": [0.0], "calibrated": [0.0, 1.0]}, "has 1 values, 2 calibrated values"),
        ({"kind": "isotonic", "value": [], "calibrated": []}, "has 0 values"),
        ({"kind": "spline"}, "expected an affine, isotonic or logistic calibration"),
    ],
)
def test_an_invalid_calibration_is_refused(plain, says):
    with pytest.raises(CheckpointError, match=says):
        calibration_from_json(plain)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("affine", [1.0], [1.0, 2.0], [0, 1]), r"got \(1,\), \(2,\), \(2,\) and \(1,\)"),
        (("affine", [1.0, 2.0], [1.0, 2.0], [0, 1], [1.0, 0.0]), "weights above 0"),
        (("affine", [1.0, math.nan], [1.0, 2.0], [0, 1]), "finite"),
        (("isotonic", [1.0, 2.0], [1.0, 2.0], ["a", "a"]), "at least 2 tasks, got 1"),
        (("spline", [1.0, 2.0], [1.0, 2.0], ["a", "b"]), "'affine', 'isotonic' or 'logistic', got 'spline'"),
    ],
)
def test_invalid_data_are_refused(arguments, says):
    kind, *rest = arguments
    with pytest.raises(ConfigurationError, match=says):
        fit_value_calibration(kind, *map(np.array, rest))


# --- the checkpoint ------------------------------------------------------------------------------------------------


@pytest.fixture
def shipped():
    return ValueCheckpoint.load(SHIPPED / ADAPTER)


def test_a_value_is_the_calibration_of_the_scaled_link_of_a_score(shipped):
    scores = np.array([-800.0, -1.0, 0.0, 0.3, 800.0])
    sigmoid = np.array([0.0, 1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-0.3)), 1.0])
    assert shipped.values(scores).tolist() == scores.tolist()
    linked = replace(shipped, link="sigmoid", scale=4.0)
    assert linked.values(scores) == pytest.approx(4 * sigmoid, abs=1e-15)
    calibrated = replace(linked, calibration=AffineCalibration(0.5, 1.0))
    assert calibrated.values(scores) == pytest.approx(2 * sigmoid + 1, abs=1e-15)
    assert calibrated.uncalibrated(scores) == pytest.approx(4 * sigmoid, abs=1e-15)
    curved = replace(shipped, scale=2.0, calibration=CURVE)
    assert curved.values(np.array([-3.0, 0.125, 9.0])).tolist() == [0.0, 0.5, 0.75]


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, 1),
        ({"link": "sigmoid"}, 2),
        ({"calibration": CURVE}, 2),
        ({"calibration": AffineCalibration(0.1, 0.2), "beta": 0.3, "scale": 2.0}, 2),
    ],
)
def test_link_and_calibration_round_trip_with_a_newer_version(shipped, tmp_path, changes, version):
    made = replace(shipped, **changes)
    made.save(tmp_path)
    assert ValueCheckpoint.load(tmp_path) == made
    assert json.loads((tmp_path / FILE).read_text())["version"] == version


def test_a_file_of_version_1_loads(shipped, tmp_path):
    shipped.save(tmp_path)
    values = json.loads((tmp_path / FILE).read_text())
    del values["link"], values["calibration"]
    (tmp_path / FILE).write_text(json.dumps(values))
    assert ValueCheckpoint.load(tmp_path) == shipped


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"link": "softmax"}, "'identity' or 'sigmoid', got 'softmax'"),
        ({"target": "past"}, "'future' or 'return', got 'past'"),
        ({"scale": 0.0}, "scale is a positive number, got 0"),
        ({"beta": -1.0}, "beta of an eq. 5 model is a positive number, got -1"),
        ({"calibration": {"kind": "affine", "slope": -1, "intercept": 0}}, "slope of at least 0"),
        ({"calibration": {"kind": "spline"}}, "expected an affine, isotonic or logistic calibration"),
    ],
)
def test_an_invalid_file_is_refused_by_its_path(shipped, tmp_path, changes, says):
    shipped.save(tmp_path)
    values = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(values | changes))
    with pytest.raises(CheckpointError, match=says) as caught:
        ValueCheckpoint.load(tmp_path)
    assert str(tmp_path / FILE) in str(caught.value)


# --- every critic --------------------------------------------------------------------------------------------------


def edited(folder, target, **changes):
    """A copy of a checkpoint folder with changed fields."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    values = json.loads((target / FILE).read_text())
    (target / FILE).write_text(json.dumps(values | changes))
    return target


CHANGES = {
    "link": "sigmoid",
    "scale": 4.0,
    "calibration": {"kind": "isotonic", "value": [1.0, 3.0], "calibrated": [0.1, 0.9]},
}


def changed(raw):
    """Values of raw scores with `CHANGES`."""
    return np.interp(4 / (1 + np.exp(-raw)), [1.0, 3.0], [0.1, 0.9])


async def test_the_embedded_critic_and_all_states_of_a_trajectory_at_once(tmp_path):
    plain = EmbeddedCritic(SHIPPED)
    raw = await plain.values(STATES)
    critic = EmbeddedCritic(SHIPPED, edited(SHIPPED / ADAPTER, tmp_path, **CHANGES))
    assert np.ptp(changed(raw)) > 0.05
    np.testing.assert_allclose(await critic.values(STATES), changed(raw), rtol=1e-5)
    (every,) = critic.state_values(STATES[-1:])
    np.testing.assert_allclose(every, changed(raw), rtol=1e-4)


async def test_the_critic_of_a_server_whose_golden_scores_stay_raw(tmp_path):
    plain = EmbeddedCritic(SHIPPED)
    raw = await plain.values(STATES)
    folder = edited(SHIPPED / ADAPTER, tmp_path, **CHANGES)
    shutil.copy(SHIPPED / "tokenizer.json", folder)
    score = plain._scorer.values
    async with FakeVLLM(value=lambda row: float(score([row])[0])) as server:
        values = await VLLMCritic(server.url, checkpoint=folder).values(STATES)
    np.testing.assert_allclose(values, changed(raw), rtol=1e-5)


def test_results_of_different_calibrations_are_not_mixed(tmp_path):
    plain = EmbeddedCritic(SHIPPED)
    critic = EmbeddedCritic(SHIPPED, edited(SHIPPED / ADAPTER, tmp_path, **CHANGES))
    assert _fingerprint(plain) != _fingerprint(critic)


# --- the beta of an eq. 5 model ------------------------------------------------------------------------------------


def eq_5_folder(tmp_path):
    """The shipped model, declared as trained by eq. 5 for beta 0.3."""
    folder = tmp_path / "eq5"
    shutil.copytree(SHIPPED, folder)
    edited(SHIPPED / ADAPTER, folder / ADAPTER, beta=0.3)
    return folder


def run_by(critic=None, beta=1.0, call=None, **more):
    graph = amc(
        number_agent(),
        critic,
        **arguments(environment=sum_world, n_particles=2, resample=AtSteps(1), seed=0, beta=beta, **more),
    )
    return graph.run(start(), **(call or {}))


OTHER_BETA = r"trained by eq\. 5 for beta 0\.3 and the run has beta 1: give the run beta=0\.3"


def test_another_beta_is_refused_wherever_the_critic_is_named(tmp_path, monkeypatch):
    spec = f"embedded:{eq_5_folder(tmp_path)}"
    for named in (spec, parse_critic(spec)):
        with pytest.raises(ConfigurationError, match=OTHER_BETA):
            amc(number_agent(), named, environment=sum_world, beta=1.0)
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        run_by(call={"context": {"critic": "own"}}, critics={"own": spec})
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        run_by(call={"context": {"critic": parse_critic(spec)}})
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        run_by(call={"config": {"configurable": {"critic": parse_critic(spec)}}})
    file = tmp_path / "amc.toml"
    file.write_text(f'critic = "{spec}"\n')
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        run_by(config=Config.load(file))
    monkeypatch.setenv("AMC_CRITIC", spec)
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        run_by()


def test_on_critic_error_uniform_does_not_ignore_another_beta(tmp_path):
    spec = f"embedded:{eq_5_folder(tmp_path)}"
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        run_by(call={"context": {"critic": parse_critic(spec)}}, on_critic_error="uniform")


def test_its_own_beta_is_taken_from_the_code_a_file_or_a_call(tmp_path, monkeypatch):
    # The critic cannot read this world's words, which does not matter here.
    monkeypatch.setattr(tokenizing, "MOST_UNKNOWN", 1.0)
    spec = f"embedded:{eq_5_folder(tmp_path)}"
    file = tmp_path / "amc.toml"
    assert run_by(spec, beta=None).beta == 0.3
    file.write_text(f'critic = "{spec}"\n[amc]\nbeta = 0.3\n')
    for run in (
        run_by(spec, beta=0.3),
        run_by(beta=0.3, call={"context": {"critic": spec}}, critics={spec: spec}),
        run_by(beta=None, config=Config.load(file)),
    ):
        assert (run.config["critic"], run.config["beta"]) == (spec, 0.3)
        assert not any("the critic failed" in note for note in run.notes)


def test_a_comparison_with_another_beta_is_refused_before_its_first_run(tmp_path):
    critic = f"embedded:{eq_5_folder(tmp_path)}"
    tasks = [Task("t", "Say bits.")]
    methods = [react(), method_amc(Tuned(steps=(2,), beta=0.3))]
    Comparison(policy=coins, environment=BitWorld, tasks=tasks, methods=methods, critic=critic)
    methods = [react(), method_amc(Tuned(steps=(2,), beta=1.0))]
    with pytest.raises(ConfigurationError, match=OTHER_BETA):
        Comparison(policy=coins, environment=BitWorld, tasks=tasks, methods=methods, critic=critic)


async def test_the_doctor_shows_the_beta(tmp_path):
    check = await critic_scores(parse_critic(f"embedded:{eq_5_folder(tmp_path)}"))
    assert check.state == "ok"
    assert check.detail.endswith("handshake passed; trained by eq. 5, only for runs with beta=0.3")
    assert "beta" not in (await critic_scores(EmbeddedCritic(SHIPPED))).detail
