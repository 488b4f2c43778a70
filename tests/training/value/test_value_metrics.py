"""The metrics of a value model, calculated by hand."""

from __future__ import annotations

import numpy as np
import pytest

from amc_agents.training.metrics import evaluate, evaluate_states
from amc_agents.training.value.rows import TargetRow


def row(success, targets, states=(0, 1, 2)):
    final = tuple(state == 2 for state in states)
    zeros = (0.0,) * len(states)
    return TargetRow((1,) * len(states), tuple(range(len(states))), states, targets, final, success, zeros)


def test_final_states_count_only_in_the_loss():
    # Values predict success only at final states, and equal their targets there.
    rows = [row(True, (1.0, 1.0, 3.0)), row(False, (0.0, 0.0, -3.0))]
    values = [np.array([0.2, 0.4, 3.0]), np.array([0.2, 0.4, -3.0])]
    metrics = evaluate(rows, values)
    assert metrics["auc"] == 0.5
    assert metrics["auc_by_step"] == {0: 0.5, 1: 0.5}
    assert metrics["pearson"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["loss"] == pytest.approx((0.8**2 + 0.6**2 + 0.2**2 + 0.4**2) / 6)
    assert (metrics["states"], metrics["trajectories"], metrics["success_rate"]) == (6, 2, 0.5)


def test_final_states_do_not_lower_a_perfect_auc():
    rows = [row(True, (1.0, 1.0, 0.0)), row(False, (0.0, 0.0, 0.0))]
    values = [np.array([0.9, 0.8, -5.0]), np.array([0.1, 0.2, 5.0])]
    metrics = evaluate(rows, values)
    assert (metrics["auc"], metrics["auc_by_step"]) == (1.0, {0: 1.0, 1: 1.0})
    assert metrics["pearson"] == pytest.approx(np.corrcoef([0.9, 0.8, 0.1, 0.2], [1, 1, 0, 0])[0, 1])


def test_metrics_of_final_states_only_are_not_defined():
    ends = np.array([True, True])
    metrics = evaluate_states(
        np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([2, 2]), ends, np.array([True, False])
    )
    assert (metrics["auc"], metrics["pearson"], metrics["auc_by_step"]) == (None, None, {})
