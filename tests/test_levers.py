"""The data of reproduce/levers."""

import importlib
from pathlib import Path

import pytest

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


def test_every_lever_but_one_has_as_many_trajectories(levers):
    for name, lever in levers.LEVERS.items():
        data = lever.data
        assert data.total == (3840 if name == levers.MORE else 960)
        assert data.total % data.tasks == 0
        assert data.total // data.tasks % (data.branches or 1) == 0
