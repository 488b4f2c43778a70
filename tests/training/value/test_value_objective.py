import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.critics.render import PLAIN, Encoder
from amc_agents.errors import ConfigurationError
from amc_agents.training.settings import Objective
from amc_agents.training.value.targets import (
    ExponentialWeights,
    returns_to_come,
    soft_returns,
    state_keys,
    state_returns,
)
from amc_agents.types import Step, Task, Trajectory
from tests.training.known_world import TASK, mean_value, name, population, soft_value, tilted_mean
from tests.training.target_rows import target_rows

ENCODER = Encoder(PLAIN, lambda text: list(text.encode()))


def targets_of(trajectories, objective):
    return [np.array(row.targets) for row in target_rows(trajectories, ENCODER, objective)]


@pytest.mark.parametrize("beta", [0.1, 1.0, 7.0])
def test_grouped_targets_of_a_known_world_are_its_soft_values(beta):
    trajectories = population()
    found = targets_of(trajectories, Objective(soft=True, beta=beta))
    for trajectory, targets in zip(trajectories, found, strict=True):
        expected = [soft_value(name(trajectory, t), beta) for t in range(len(targets))]
        np.testing.assert_allclose(targets, expected, rtol=0, atol=1e-12)
    # Of the whole return: what was earned before the state is the same for all who share it.
    whole = targets_of(trajectories, Objective(soft=True, beta=beta, target="return"))
    for trajectory, targets, rest in zip(trajectories, whole, found, strict=True):
        earned = trajectory.return_ - returns_to_come(trajectory)
        np.testing.assert_allclose(targets, earned + rest, rtol=0, atol=1e-12)


@pytest.mark.parametrize("state", ["", "b", "by"])
def test_the_tilted_mean_is_the_slope_of_the_log_mean_exp_and_lies_above_it(state):
    # Objective's docstring says so of "weighted" and of eq. 5.
    beta, change = 0.4, 1e-5
    log_means = [soft_value(state, 1 / slope) * slope for slope in (1 / beta - change, 1 / beta + change)]
    assert np.diff(log_means)[0] / (2 * change) == pytest.approx(tilted_mean(state, beta), abs=1e-8)
    assert tilted_mean(state, beta) > soft_value(state, beta) > mean_value(state)


def test_eq_7_targets_average_to_the_mean_value():
    trajectories = population()
    at_the_root = [targets[0] for targets in targets_of(trajectories, Objective())]
    assert np.mean(at_the_root) == pytest.approx(mean_value(""), abs=1e-12)
    assert np.ptp(at_the_root) > 1


def test_trajectories_of_other_tasks_share_no_state():
    one, other = (replace(population()[0], task=Task(name, "walk")) for name in ("t/0", "t/1"))
    rich = replace(other, steps=(replace(other.steps[0], reward=5.0), *other.steps[1:]))
    soft = targets_of([one, rich], Objective(soft=True, beta=1.0))
    assert soft[0].tolist() == returns_to_come(one).tolist()  # to the last bit: each state was passed once
    assert soft[1].tolist() == returns_to_come(rich).tolist()


def test_a_state_is_what_a_critic_reads_of_it():
    base = Trajectory(TASK, (Step("a", "o", "t", 1.0, ("m",)), Step("b")), done=True)
    keys = state_keys(base)
    assert len({tuple(key) for key in keys.tolist()}) == 3
    unread = replace(base, steps=(replace(base.steps[0], reward=0.0, message_ids=()), base.steps[1]))
    assert (state_keys(unread) == keys).all()
    assert (state_keys(base.prefix(1)) == keys[:2]).all()
    for change in ({"action": "c"}, {"observation": "c"}, {"thought": "c"}, {"action": "o", "observation": "a"}):
        changed = state_keys(replace(base, steps=(replace(base.steps[0], **change), base.steps[1])))
        assert (changed[0] == keys[0]).all()
        assert not (changed[1:] == keys[1:]).all(axis=1).any()
    # Where one text ends and the next begins is part of it.
    joined = Trajectory(TASK, (Step("ab", "c"),))
    apart = Trajectory(TASK, (Step("a", "bc"),))
    assert not (state_keys(joined)[1] == state_keys(apart)[1]).all()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-50, 50)), min_size=1, max_size=30),
    st.floats(1e-3, 1e3),
    st.randoms(use_true_random=False),
)
def test_soft_returns_lie_between_mean_and_maximum_in_any_order(entries, beta, random):
    keys = np.array([[state, 7] for state, _ in entries], np.uint64)
    returns = np.array([one for _, one in entries])
    soft = soft_returns(keys, returns, beta)
    for state in set(keys[:, 0].tolist()):
        group = keys[:, 0] == state
        assert np.ptp(soft[group]) == 0
        assert returns[group].mean() - 1e-9 <= soft[group][0] <= returns[group].max() + 1e-9
    order = list(range(len(entries)))
    random.shuffle(order)
    assert (soft_returns(keys[order], returns[order], beta) == soft[order]).all()


def weights_of(pieces, beta):
    weights = ExponentialWeights(beta)
    for piece in pieces:
        weights.add(np.array(piece))
    return weights.of(np.concatenate(pieces))


def test_exponential_weights_have_mean_one_and_the_stated_ratios():
    weights = weights_of([[0.0, 1.0], [0.5], []], beta=0.5)
    assert weights.mean() == pytest.approx(1.0, abs=1e-15)
    assert weights[1] / weights[0] == pytest.approx(math.exp(1 / 0.5), rel=1e-15)
    assert weights_of([[1000.0, 0.0], [1000.0]], beta=0.1).tolist() == [1.5, 0.0, 1.5]
    assert weights_of([[0.0], [1000.0, 1000.0]], beta=0.1).tolist() == [0.0, 1.5, 1.5]
    assert weights_of([[0.3], [0.3, 0.3]], beta=1e-3).tolist() == [1.0, 1.0, 1.0]


@given(st.lists(st.lists(st.floats(-5, 5), max_size=5), min_size=1).filter(any))
def test_weights_in_pieces_are_those_of_the_whole(pieces):
    whole = np.concatenate(pieces)
    expected = np.exp(whole / 0.7) / np.mean(np.exp(whole / 0.7))
    np.testing.assert_allclose(weights_of(pieces, 0.7), expected, rtol=1e-12)


def test_rows_carry_weights():
    steps = (Step("a", reward=0.5), Step("b"), Step("c", reward=1.0))
    whole = Trajectory(TASK, steps, done=True)
    (row,) = target_rows([whole], ENCODER)
    assert row.weights == (1.0,) * 4
    (row,) = target_rows([whole], ENCODER, Objective(loss="weighted", beta=1.0))
    expected = np.exp([1.5, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(row.weights, expected / expected.mean(), rtol=1e-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "huber"}, "'huber'.*'squared', 'weighted' or 'bce'"),
        ({"target": "past"}, "'past'.*'future' or 'return'"),
        ({"beta": 0.0, "soft": True}, "beta is 0.0.*positive"),
        ({"beta": math.inf, "soft": True}, "beta is inf.*positive"),
        ({"soft": True}, "soft needs beta"),
        ({"loss": "weighted"}, "loss='weighted' needs beta"),
        ({"beta": 1.0}, "beta is 1.0.*leave it out"),
        ({"beta": 1.0, "soft": True, "loss": "weighted"}, "choose soft .* or weighted"),
    ],
)
def test_objectives_without_a_meaning_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Objective(**settings)


def test_beta_is_stored_where_the_values_hold_for_it_alone():
    assert Objective().stored_beta is None
    assert Objective(soft=True, beta=0.3).stored_beta == 0.3
    assert Objective(loss="weighted", beta=0.3).stored_beta is None
    assert [Objective().link, Objective(loss="bce").link] == ["identity", "sigmoid"]


@pytest.mark.parametrize("target", ["future", "return"])
def test_binary_loss_refuses_other_returns_and_names_them(target):
    good = Trajectory(Task("t/good", ""), (Step("a"), Step("b", reward=1.0)), done=True)
    bad = Trajectory(Task("t/bad", ""), (Step("a", reward=0.25), Step("b", reward=0.5)), done=True)
    objective = Objective(loss="bce", target=target)
    assert [one.tolist() for one in targets_of([good], objective)] == [[1, 1, 0 if target == "future" else 1]]
    with pytest.raises(ConfigurationError, match=r"'t/bad' has .*0.75.*loss='squared'"):
        targets_of([good, bad], objective)


def test_returns_that_are_not_known_or_no_numbers_are_refused():
    unfinished = Trajectory(TASK, (Step("a"),))
    with pytest.raises(ConfigurationError, match="'tree' is not done"):
        state_returns(unfinished, Objective())
    with pytest.raises(ConfigurationError, match="return of nan"):
        state_returns(Trajectory(TASK, (Step("a", reward=math.nan),), done=True), Objective())
