"""The metrics of a value model, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.metrics import evaluate, evaluate_states


def row(success, targets, states=(0, 1, 2)):
    final = tuple(state == 2 for state in states)
    zeros = (0.0,) * len(states)
    return TargetRow((1,) * len(states), tuple(range(len(states))), states, targets, final, success, zeros, zeros)


def test_final_states_count_in_the_loss_alone():
    # Before the ends the values say nothing of success; at the ends they tell it exactly, and the ends' targets too.
    rows = [row(True, (1.0, 1.0, 3.0)), row(False, (0.0, 0.0, -3.0))]
    values = [np.array([0.2, 0.4, 3.0]), np.array([0.2, 0.4, -3.0])]
    found = evaluate(rows, values)
    assert found["auc"] == 0.5
    assert found["auc_by_step"] == {0: 0.5, 1: 0.5}
    assert found["pearson"] == pytest.approx(0.0, abs=1e-12)
    assert found["loss"] == pytest.approx((0.8**2 + 0.6**2 + 0.2**2 + 0.4**2) / 6)
    assert (found["states"], found["trajectories"], found["success_rate"]) == (6, 2, 0.5)


def test_a_perfect_beginning_is_not_spoilt_by_its_ends():
    rows = [row(True, (1.0, 1.0, 0.0)), row(False, (0.0, 0.0, 0.0))]
    values = [np.array([0.9, 0.8, -5.0]), np.array([0.1, 0.2, 5.0])]
    found = evaluate(rows, values)
    assert (found["auc"], found["auc_by_step"]) == (1.0, {0: 1.0, 1: 1.0})
    assert found["pearson"] == pytest.approx(np.corrcoef([0.9, 0.8, 0.1, 0.2], [1, 1, 0, 0])[0, 1])


def test_figures_that_ends_alone_would_define_are_not_defined():
    ends = np.array([True, True])
    found = evaluate_states(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([2, 2]), ends, np.array([True, False]))
    assert (found["auc"], found["pearson"], found["auc_by_step"]) == (None, None, {})
