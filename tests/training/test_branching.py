"""Trajectories that share a prefix, for several returns of one state."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import numpy as np
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps
from amc_agents.training.branching import Branching
from amc_agents.training.collecting import amc_rollouts, collect
from amc_agents.training.dataset import read_records
from amc_agents.types import Task
from tests.training.walks import Walk

TASK = Task("walk", "Walk.")
calls = Counter()


class Steps(BaseChatModel):
    """Walks up or down with probability 1/2 each, and counts its calls."""

    @property
    def _llm_type(self):
        return "steps"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        calls["policy"] += 1
        action = "up" if particle_rng().random() < 0.5 else "down"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Action: {action}"))])


def paths(branching, seed, n=8, horizon=6, lowest=-99):
    rollouts = amc_rollouts(text_agent(Steps()), lambda: Walk(lowest), n, horizon=horizon, branching=branching)
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
    steps = [step for schedule in drawn for step in schedule.steps]
    assert set(steps) == set(range(1, 11))
    assert all(len(schedule.steps) == 2 for schedule in drawn)
    assert Branching(4, (9, 3)).schedule(20, 0) == AtSteps(3, 9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Branching(3), "branches is 3: expected 2, 4, 8"),
        (lambda: Branching(1), "branches is 1"),
        (lambda: Branching(4, (2,)), "4 branches need 2 different steps of at least 1"),
        (lambda: Branching(4, (2, 2)), "4 branches need 2 different steps"),
        (lambda: Branching(2, (0,)), "at least 1"),
        (lambda: Branching(4).starts(6), "6 trajectories of a task cannot have 4 branches each"),
        (lambda: Branching(4).schedule(2, 0), "a horizon of 2 is too short for 2 splits"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_collection_records_how_it_branched_and_says_nothing_about_the_search(tmp_path, caplog):
    pytest.importorskip("pyarrow")
    tasks = list(generate_tasks(2, "train", optimal_steps=(4, 6)))
    agent = text_agent(EmbeddedChatModel(temperature=1.0))
    new = collect(agent, tasks, CraftingWorld, 4, tmp_path, horizon=8, branching=Branching(2, (2,)), seed=3)
    records = read_records(tmp_path)
    assert new == len(records) == 8
    assert '"branch_at": [2]' in records[0].settings
    assert '"branches": 2' in records[0].settings
    for _, group in itertools.groupby(records, key=lambda record: record.trajectory.task.id):
        past = Counter(tuple(step.action for step in record.trajectory.steps[:2]) for record in group)
        assert all(count % 2 == 0 for count in past.values())
    assert not caplog.records
