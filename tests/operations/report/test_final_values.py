from __future__ import annotations

import pytest

from amc_agents.bench.report import final_values
from tests.operations.report.conftest import result


def test_a_critic_that_knows_ranks_every_success_first():
    runs = [result("m", f"t{i}", 0, [0.0, 1.0, 0.0], [0.1, 0.9, 0.2]) for i in range(4)]
    values = final_values(runs, 1.0)
    assert values.auc.mean == 1.0
    assert values.auc.tasks == 4
    assert [mean.mean for mean in values.best] == pytest.approx([1.0, 0.5, 1 / 3])
    assert values.trajectories == 12


def test_a_reversed_critic_is_seen():
    runs = [result("m", f"t{i}", 0, [0.0, 1.0], [0.9, 0.1]) for i in range(3)]
    values = final_values(runs, 1.0)
    assert values.auc.mean == 0.0
    assert values.best[0].mean == 0.0
    assert values.calibration_error == pytest.approx(0.9)


def test_runs_without_both_outcomes_have_no_auc():
    runs = [result("m", "t", 0, [1.0, 1.0], [0.5, 0.6])]
    assert final_values(runs, 1.0).auc is None


def test_values_that_mean_nothing_are_left_out():
    assert final_values([result("m", "t", 0, [1.0], [0.5])], 1.0) is None
    assert final_values([result("m", "t", 0, [1.0, 0.0], [0.0, 0.0])], 1.0) is None


def test_smaller_populations_bound_the_curve():
    runs = [result("m", "a", 0, [1.0, 0.0], [1.0, 0.0]), result("m", "b", 0, [1.0, 0.0, 0.0], [1.0, 0.0, 0.5])]
    assert len(final_values(runs, 1.0).best) == 2
