"""The data of reproduce/levers."""

import asyncio

import numpy as np
import pytest

from amc_agents.envs.registry import world
from amc_agents.envs.workshop import solution_from
from amc_agents.training.settings import Objective
from amc_agents.types import Step, Task, Trajectory

torch = pytest.importorskip("torch", reason="torch is not installed")
from amc_agents.training.value import row_building  # noqa: E402
from reproduce.beyond import play  # noqa: E402
from reproduce.dose import draws, noise  # noqa: E402
from reproduce.levers import levers, summed, taught  # noqa: E402
from reproduce.levers.ranking_loss import pairwise  # noqa: E402
from reproduce.levers.td_loss import td_targets  # noqa: E402


def test_centred_returns_differ_within_a_task_only():
    steps = (Step("look", "a room"), Step("win", "the end"))

    def run(task, reward):
        return Trajectory(Task(task, "play"), (steps[0], Step("win", "the end", reward=reward)), done=True)

    runs = [run("easy", 1.0), run("easy", 1.0), run("easy", 0.0), run("never", 0.0), run("never", 0.0)]
    centred = levers.centred(runs)
    assert [each.return_ for each in centred] == pytest.approx([1 / 3, 1 / 3, -2 / 3, 0, 0])
    assert [each.steps[0] for each in centred] == [each.steps[0] for each in runs]


@pytest.fixture
def grades(tmp_path):
    """Grades of one trajectory's unfinished states, in a file."""
    spec = world("crafting-stock")

    def graded(played, task, how):
        policy = play.Policy(str(levers.POLICY))
        return taught.grades_of([played], {task.id: task}, spec.make, policy, how, tmp_path / "grades.jsonl")

    return graded


async def wasteful(spec, task):
    """Play a step that is wasted, then the planner's solution."""
    place, trajectory = spec.make(), Trajectory(task)
    await place.reset(task)
    best = solution_from(task.payload, place)
    for action in ("no such action", *best.actions):
        answer = await place.step(action)
        step = Step(action, answer.observation, reward=answer.reward)
        trajectory = trajectory.extended(step, done=answer.done)
    return best, trajectory


def test_a_taught_model_s_targets_are_the_planner_s_grades(grades):
    spec = world("crafting-stock")
    (task,) = spec.tasks(1, "train", 700_000)
    best, played = asyncio.run(wasteful(spec, task))
    assert played.return_ > 0
    usual = vars(row_building)["state_returns"](played, levers.BCE)
    with taught.targets(grades(played, task, taught.by_planner)):
        targets = vars(row_building)["state_returns"](played, levers.BCE)
    wasted, left = 0.5 / noise.HORIZON, noise.HORIZON - best.n_steps
    assert targets == pytest.approx([0.5 + wasted * left, *[0.5 + wasted * (left - 1)] * best.n_steps, 1.0])
    assert vars(row_building)["state_returns"](played, levers.BCE) == pytest.approx(usual)
    # The file answers the second time: another way to grade is not asked.
    assert list(grades(played, task, taught.by_rollouts(0.7, 1)).values()) == pytest.approx(targets[:-1])


@pytest.mark.thorough
def test_grades_by_rollouts_are_mean_returns_of_the_policy(grades):
    spec = world("crafting-stock")
    (task,) = spec.tasks(1, "train", 700_000)
    best, played = asyncio.run(wasteful(spec, task))
    found = list(grades(played, task, taught.by_rollouts(0.7, 4)).values())
    assert len(found) == best.n_steps + 1
    assert all(4 * grade == round(4 * grade) and 0 <= grade <= 1 for grade in found)
    # A step from the end, the policy has the world's other steps left to make it.
    assert found[-1] > found[0]


def test_a_transcript_that_the_world_does_not_repeat_is_not_graded(grades):
    spec = world("crafting-stock")
    (task,) = spec.tasks(1, "train", 700_000)
    _, played = asyncio.run(wasteful(spec, task))
    first, *others = played.steps
    changed = Trajectory(task, (Step(first.action, "something else"), *others), done=True)
    with pytest.raises(ValueError, match="not as recorded"):
        grades(changed, task, taught.by_planner)


def test_verdicts_on_actions_are_summed_along_the_path():
    root = draws.Node(Trajectory(Task("t", "play")), None, (0,))
    good = draws.Node(root.trajectory, None, (0, 1), root)
    bad = draws.Node(root.trajectory, None, (0, 1, 2), good)

    class Odds:
        async def values(self, nodes):
            return np.array([{good: 0.9, bad: 0.2}[node] for node in nodes])

    values = asyncio.run(summed.Summed(Odds()).values([good, bad]))
    assert values == pytest.approx([np.log(9), np.log(9) + np.log(0.25)])


def test_every_lever_but_one_has_as_many_trajectories():
    for name, lever in levers.LEVERS.items():
        data = lever.data
        assert data.total == (3840 if name == levers.MORE else 960)
        assert data.total % data.tasks == 0
        assert data.total // data.tasks % (data.branches or 1) == 0


def test_the_ranking_loss_compares_states_of_a_task_at_the_same_step():
    # Two runs of a task with the prompt 7, and one of another task: states 0 and 1 of each.
    batch = {
        "input_ids": torch.tensor([[7, 1, 0], [7, 2, 0], [8, 1, 0]]),
        "mark_rows": torch.tensor([0, 0, 1, 1, 2, 2]),
        "mark_columns": torch.tensor([0, 1, 0, 1, 0, 1]),
        "targets": torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    }
    # At step 0 the better run leads by 0, at step 1 by 2.
    scores = torch.tensor([0.5, 3.0, 0.5, 1.0, 9.0, -9.0])
    expected = (np.log1p(1.0) + np.log1p(np.exp(-2.0))) / 2
    assert pairwise(scores, batch).item() == pytest.approx(expected, rel=1e-6)
    batch["targets"] = torch.zeros(6)
    assert pairwise(scores, batch).item() == 0


def test_td_targets_are_those_of_a_calculation_by_hand():
    # Rewards 0.5, 0, 1, then the end; values 0.2, 0.4, 0.6, 0.9; lambda 0.5; the second row is a
    # window before the end.
    #   y2 = 1 (the return at the end is known), y1 = 0.5 x 0.6 + 0.5 x 1 = 0.8, y0 = 0.5 + 0.5 x 0.4 + 0.5 x 0.8 = 1.1
    batch = {
        "targets": torch.tensor([1.5, 1.0, 1.0, 0.0, 1.5, 1.0]),
        "mark_rows": torch.tensor([0, 0, 0, 0, 1, 1]),
        "ends": torch.tensor([False, False, False, True, False, False]),
    }
    scores = torch.tensor([0.2, 0.4, 0.6, 0.9, 0.2, 0.4])
    found = td_targets(scores, batch, Objective(), 0.5)
    assert found.tolist() == pytest.approx([1.1, 0.8, 1.0, 0.0, 1.2, 1.0])
