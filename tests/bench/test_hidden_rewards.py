"""Where rewards come at the end alone, hiding them changes what the pick can look at, and no trajectory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from amc_agents.bench.methods import Tuned, amc
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.runner import run_one
from amc_agents.run import Run


@pytest.mark.thorough
def test_the_same_luck_plays_the_same_trajectories_with_rewards_hidden() -> None:
    seen = amc(Tuned(temperature=1.0, steps=(2, 4, 6), beta=0.05))
    plan = ComparisonPlan(methods=(seen,), n_tasks=2, band=(4, 5), n_particles=6, plain=True)
    comparison = plan.comparison()

    def played(hide_rewards: bool) -> list[Run]:
        method = replace(seen, hide_rewards=hide_rewards)
        return [asyncio.run(run_one(comparison, 0, task, method))[1] for task in comparison.tasks]

    for open_run, hidden_run in zip(played(False), played(True), strict=True):
        assert any(point.retired for point in open_run.history)  # some end before the last resampling
        assert [point.retired for point in open_run.history] == [point.retired for point in hidden_run.history]
        assert texts(open_run) == texts(hidden_run)
        assert hidden_run.deployable
        assert not open_run.deployable


def texts(run: Run) -> list[list[str]]:
    return [[message.text for message in output["messages"]] for output in run.outputs]
