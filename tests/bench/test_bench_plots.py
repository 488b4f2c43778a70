from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from amc_agents.bench.methods import Tuned, amc
from amc_agents.bench.plots import branches_of, genealogy, method_scores
from amc_agents.bench.report import summarise
from amc_agents.bench.runner import compare, run_one
from amc_agents.run import Population, Run, WeighingPoint
from amc_agents.smc import Adaptive
from amc_agents.types import Step, Task, Trajectory

TASK = Task("t", "do")


def made(steps, return_=0.0):
    return Trajectory(TASK, (*[Step("go")] * (steps - 1), Step("end", reward=return_)), done=True)


@pytest.fixture
def run():
    """Three particles: at step 2 the first is put away, the second is dropped, the third gets three offspring."""
    point = WeighingPoint(2, np.array([1.0, 0.1, 0.6]), np.zeros(3), 3.0, np.array([2, 2, 2]), (0,))
    end = WeighingPoint(9, np.array([0.0, 1.0, 0.0]), np.zeros(3), 3.0, None)
    trajectories = (made(5), made(3, 1.0), made(5), made(1, 1.0))
    population = Population(trajectories, np.zeros(4), np.zeros(4), np.array([0.0, 1.0, 0.0, 1.0]))
    return Run(made(3, 1.0), 1, population, (point, end), 0.0, {}, 1, {}, "return", False)


def test_branches_follow_the_run(run):
    branches = branches_of(run)
    first, last = branches[:3], branches[3:]
    assert [(one.row, one.start, one.end, one.ending) for one in first] == [
        (0, 0.0, 1.0, "success"),
        (1, 0.0, 2.0, "dropped"),
        (2, 0.0, 2.0, "continued"),
    ]
    assert [one.ending for one in last] == ["failure", "success", "failure"]
    assert [one.from_row for one in last] == [2, 2, 2]
    assert [one.value_before for one in last] == [0.6] * 3
    assert [one.end for one in last] == [5.0, 3.0, 5.0]


async def test_no_two_branches_cross(make_comparison):
    comparison = make_comparison(1, [amc(Tuned(steps=(1, 2, 3), beta=0.1))], n_particles=8)
    _, run = await run_one(comparison, 0, comparison.tasks[0], comparison.methods[0])
    branches = branches_of(run)
    for start in {one.start for one in branches} - {0.0}:
        forks = sorted((one for one in branches if one.start == start), key=lambda one: one.row)
        assert [one.row for one in forks] == list(range(8))
        assert [one.from_row for one in forks] == sorted(one.from_row or 0 for one in forks)


async def test_a_growing_population_is_drawn(make_comparison, tmp_path):
    method = replace(amc(Tuned(steps=(1, 2), beta=0.1)), n_particles=Adaptive(2, 8, 1.0))
    comparison = make_comparison(1, [method])
    _, run = await run_one(comparison, 0, comparison.tasks[0], method)
    branches = branches_of(run)
    sizes = [sum(branch.start == start for branch in branches) for start in sorted({one.start for one in branches})]
    assert sizes[0] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] > 2
    assert genealogy(run, tmp_path / "run.png").exists()


def test_the_picture_of_a_run(run, tmp_path):
    picture = imread(genealogy(run, tmp_path / "deep" / "run.png", title="A run"))
    assert picture.shape[:2] == (700, 1200)
    assert picture[..., :3].std() > 0.02


def test_unknown_values_are_drawn_in_grey(run, tmp_path):
    unknown = WeighingPoint(2, np.array([np.nan, 0.1, 0.6]), np.zeros(3), 3.0, np.array([2, 2, 2]), (0,))
    values = np.array([0.0, 1.0, 0.0, np.nan])
    population = replace(run.population, values=values)
    picture = imread(
        genealogy(replace(run, history=(unknown, *run.history[1:]), population=population), tmp_path / "r.png")
    )
    drawn = picture[:595, :1060, :3]  # without the legend and the bar of colours
    assert np.sum(np.abs(drawn - np.array([0xB6, 0xBC, 0xC4]) / 255).max(axis=-1) < 0.02) > 200
    assert np.sum(np.ptp(drawn, axis=-1) > 0.4) > 1000, "known values keep their colours"


@pytest.mark.thorough
async def test_the_picture_of_the_methods(make_comparison, tmp_path):
    comparison = make_comparison(2)
    results = summarise(await compare(comparison, tmp_path), comparison.methods, comparison.settings)
    assert imread(method_scores(results, tmp_path / "scores.png")).shape[1] == 1200
