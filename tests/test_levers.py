"""The data of reproduce/levers."""

import asyncio
import importlib
from pathlib import Path

import numpy as np
import pytest

from amc_agents.envs.registry import world
from amc_agents.envs.workshop import solution_from
from amc_agents.types import Step, Task, Trajectory

REPRODUCE = Path(__file__).parent.parent / "reproduce"


@pytest.fixture(scope="module")
def levers():
    """The module, which is in no package."""
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("study", "beyond", "dose", "levers"):
            patch.syspath_prepend(REPRODUCE / folder)
        yield importlib.import_module("levers")


def test_centred_returns_differ_within_a_task_only(levers):
    steps = (Step("look", "a room"), Step("win", "the end"))

    def run(task, reward):
        return Trajectory(Task(task, "play"), (steps[0], Step("win", "the end", reward=reward)), done=True)

    runs = [run("easy", 1.0), run("easy", 1.0), run("easy", 0.0), run("never", 0.0), run("never", 0.0)]
    centred = levers.centred(runs)
    assert [each.return_ for each in centred] == pytest.approx([1 / 3, 1 / 3, -2 / 3, 0, 0])
    assert [each.steps[0] for each in centred] == [each.steps[0] for each in runs]


def test_a_taught_model_s_targets_are_the_planner_s_grades(levers):
    taught, noise, rows = (
        importlib.import_module(name) for name in ("taught", "noise", "amc_agents.training.value.row_building")
    )
    spec = world("crafting-stock")
    (task,) = spec.tasks(1, "train", 700_000)

    async def wasteful():
        place, trajectory = spec.make(), Trajectory(task)
        await place.reset(task)
        best = solution_from(task.payload, place)
        for action in ("no such action", *best.actions):
            answer = await place.step(action)
            step = Step(action, answer.observation, reward=answer.reward)
            trajectory = trajectory.extended(step, done=answer.done)
        return best, trajectory

    best, played = asyncio.run(wasteful())
    assert played.return_ > 0
    usual = rows.state_returns(played, levers.BCE)
    with taught.planner_targets([played], {task.id: task}, spec.make):
        targets = rows.state_returns(played, levers.BCE)
    wasted, left = 0.5 / noise.HORIZON, noise.HORIZON - best.n_steps
    assert targets == pytest.approx([0.5 + wasted * left, *[0.5 + wasted * (left - 1)] * best.n_steps, 1.0])
    assert rows.state_returns(played, levers.BCE) == pytest.approx(usual)


def test_every_lever_but_one_has_as_many_trajectories(levers):
    for name, lever in levers.LEVERS.items():
        data = lever.data
        assert data.total == (3840 if name == levers.MORE else 960)
        assert data.total % data.tasks == 0
        assert data.total // data.tasks % (data.branches or 1) == 0


def test_the_ranking_loss_compares_states_of_a_task_at_the_same_step(levers):
    torch = importlib.import_module("torch")
    # Two runs of a task with the prompt 7, and one of another task: states 0 and 1 of each.
    batch = {
        "input_ids": torch.tensor([[7, 1, 0], [7, 2, 0], [8, 1, 0]]),
        "mark_rows": torch.tensor([0, 0, 1, 1, 2, 2]),
        "mark_columns": torch.tensor([0, 1, 0, 1, 0, 1]),
        "targets": torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    }
    pairwise = importlib.import_module("ranking_loss").pairwise
    # At step 0 the better run leads by 0, at step 1 by 2.
    scores = torch.tensor([0.5, 3.0, 0.5, 1.0, 9.0, -9.0])
    expected = (np.log1p(1.0) + np.log1p(np.exp(-2.0))) / 2
    assert pairwise(scores, batch).item() == pytest.approx(expected, rel=1e-6)
    batch["targets"] = torch.zeros(6)
    assert pairwise(scores, batch).item() == 0
