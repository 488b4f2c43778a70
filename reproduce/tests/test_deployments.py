"""Simulated deployments from the bank of runs: coverage and false claims, with binomial bounds."""

from dataclasses import replace

import pytest

from reproduce.rollout import deployments as simulated
from tests.operations.rollout.bank import most


@pytest.mark.thorough
def test_the_interval_covers_and_the_verdict_is_right():
    bank, n_deployments = simulated.Bank(), 40
    for name, scenario in simulated.SCENARIOS.items():
        counts = simulated.summary(bank, replace(scenario, n_users=800), n_deployments)
        assert counts["deployments"] - counts["covered"] <= most(n_deployments, 0.05), name
        lift = counts["true_lift"][0]
        if lift == 0:  # Each side of the interval has half of the error.
            assert max(counts["better"], counts["worse"]) <= most(n_deployments, 0.025), name
        else:
            wrong, right = ("worse", "better") if lift > 0 else ("better", "worse")
            assert counts[wrong] <= most(n_deployments, 0.025), name
            assert counts[right] >= 0.5 * n_deployments, name


def test_the_bank_has_a_lift_and_a_harm():
    bank = simulated.Bank()
    assert bank.lift(simulated.SCENARIOS["lift"], 0.5) > 0.1
    assert bank.lift(simulated.SCENARIOS["harmful critic"], 0.5) < -0.1
    assert bank.lift(simulated.SCENARIOS["no lift"], 0.5) == 0
