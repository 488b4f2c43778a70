"""Trajectories that share a prefix (reproduce/crafting/branching.py), for several returns of one state."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from amc_agents.errors import ConfigurationError
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps
from amc_agents.types import Task
from reproduce.crafting.branching import Branching
from tests.training.walks import Steps, Walk, calls

TASK = Task("walk", "Walk.")


def paths(branching, seed, n=8, horizon=6, lowest=-99):
    rollouts = branching.rollouts(text_agent(Steps()), lambda: Walk(lowest), n, horizon=horizon)
    return [tuple(s.action for s in t.steps) for t in asyncio.run(rollouts(TASK, seed))]


def test_trajectories_share_their_past_up_to_the_splits():
    told = paths(Branching(4, (2, 4)), seed=1)
    assert len(told) == 8
    # Two trajectories until step 2, four until step 4: at most so many different prefixes.
    assert len({path[:2] for path in told}) <= 2
    assert len({path[:4] for path in told}) <= 4
    assert Counter(path[:2] for path in told).most_common()[0][1] >= 4
    # Over seeds, the continuations differ: 8 walks of 2 further steps are rarely all equal.
    assert len({path for seed in range(4) for path in paths(Branching(4, (2, 4)), seed)}) > 8


def test_a_prefix_is_paid_once():
    calls.clear()
    paths(Branching(4, (2, 4)), seed=0)
    # 2 x 2 steps, then 4 x 2, then 8 x 2, instead of 8 x 6.
    assert calls["policy"] == 4 + 8 + 16


@pytest.mark.thorough
def test_continuations_of_a_state_are_those_of_the_policy():
    """After any first step, the second goes up half the time."""
    n, ups = 0, 0
    for seed in range(60):
        for path in paths(Branching(2, (1,)), seed, n=4, horizon=3):
            n, ups = n + 1, ups + (path[1] == "up")
    # Four paths of a seed have two independent pasts at least: a standard error of .5 / sqrt(120) bounds the mean's.
    assert abs(ups / n - 0.5) < 4.5 * 0.5 / np.sqrt(120)


@pytest.mark.thorough
def test_trajectories_that_end_before_a_split_count_as_often_as_others():
    """Walks end at -1: half of them after the first step. The share of these must not depend on the split."""
    ended = total = 0
    for seed in range(60):
        told = paths(Branching(4, (2, 3)), seed, n=8, horizon=4, lowest=-1)
        assert len(told) == 8
        ended, total = ended + sum(len(path) == 1 for path in told), total + 8
    # The eight copy two first steps: 120 draws of 1/2.
    assert abs(ended / total - 0.5) < 4.5 * 0.5 / np.sqrt(120)


def test_steps_are_drawn_for_each_task_in_the_first_half():
    drawn = [Branching(4).schedule(20, seed) for seed in range(200)]
    assert drawn[0] == Branching(4).schedule(20, 0)
    assert {step for schedule in drawn for step in schedule.steps} == set(range(1, 11))
    assert all(len(schedule.steps) == 2 for schedule in drawn)
    assert Branching(4, (9, 3)).schedule(20, 0) == AtSteps(3, 9)
    assert Branching(2, (2,)).settings == {"branches": 2, "branch_at": [2]}


def test_bad_settings_are_refused():
    for arguments in ((3,), (1,), (4, (2,)), (4, (2, 2)), (2, (0,))):
        with pytest.raises(ConfigurationError, match="branches"):
            Branching(*arguments)
    with pytest.raises(ConfigurationError, match="6 trajectories of a task cannot have 4 branches each"):
        Branching(4).starts(6)
    with pytest.raises(ConfigurationError, match="a horizon of 2 is too short for 2 splits"):
        Branching(4).schedule(2, 0)
