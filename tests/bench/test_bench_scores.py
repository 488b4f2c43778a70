from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.bench.records import Particles, cost_of, particles_of, scores_of
from amc_agents.errors import PopulationError
from amc_agents.run import Population, Run
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Usage

TASK = Task("t", "do")


def trajectory(action, return_, thought=""):
    return Trajectory(TASK, (Step(action, thought=thought), Step("end", reward=return_)), done=True)


def run_of(trajectories, log_weights=None, failed=None, best=0, deployable=False):
    size = len(trajectories)
    weights = np.zeros(size) if log_weights is None else np.array(log_weights)
    population = Population(tuple(trajectories), weights, weights, np.zeros(size), failed or (False,) * size)
    usage = {"policy": Usage(10, 200, 30, 150), "critic": Usage(4, 80, 0, 20)}
    return Run(trajectories[best], best, population, (), 0.0, usage, 1, {}, "return", deployable)


SEVEN = [trajectory(name, return_) for name, return_ in zip("abcdefg", (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9), strict=True)]


def test_scores_of_a_population():
    scores = scores_of(run_of(SEVEN), single=False, pick_means_something=True)
    assert scores.oracle == 0.9
    assert scores.success == 0
    assert scores.top5 == pytest.approx(2.3 / 5)
    assert scores.mean == pytest.approx(2.4 / 7)
    assert (scores.particles, scores.distinct) == (7, 7)
    assert scores.deployable is None


def test_distinct_is_by_thought_and_action():
    twice = [trajectory("a", 1.0), trajectory("a", 1.0), trajectory("a", 0.0, thought="hm"), trajectory("b", 0.0)]
    scores = scores_of(run_of(twice), single=False, pick_means_something=True)
    assert scores.distinct == 3
    assert scores.mean == scores.top5 == 0.5
    assert scores.mean_distinct == scores.top5_distinct == pytest.approx(1 / 3)


def test_the_deployable_pick_is_the_runs_own_not_the_oracles():
    hidden = run_of(SEVEN, best=2, deployable=True)
    scores = scores_of(hidden, single=False, pick_means_something=True)
    assert (scores.deployable, scores.oracle) == (0.2, 0.9)
    assert scores_of(hidden, single=False, pick_means_something=False).deployable is None
    assert scores_of(run_of(SEVEN[:1]), single=True, pick_means_something=False).deployable == 0.0


def test_weighted_mean_follows_the_weights():
    run = run_of([trajectory("a", 1.0), trajectory("b", 0.0)], log_weights=[math.log(3), 0.0])
    assert scores_of(run, single=False, pick_means_something=True).weighted_mean == pytest.approx(0.75)


def test_failed_particles_are_left_out():
    run = run_of([trajectory("a", 0.4), trajectory("b", 0.0)], log_weights=[0.0, -np.inf], failed=(False, True))
    scores = scores_of(run, single=False, pick_means_something=True)
    assert (scores.mean, scores.particles) == (0.4, 1)
    with pytest.raises(PopulationError):
        scores_of(run_of([SEVEN[0]], failed=(True,)), single=False, pick_means_something=True)


def test_cost_by_role():
    cost = cost_of(run_of(SEVEN), 1.5)
    assert (cost.policy_calls, cost.policy_output_tokens, cost.policy_cached_tokens) == (10, 30, 150)
    assert (cost.critic_calls, cost.critic_tokens, cost.critic_cached_tokens) == (4, 80, 20)
    assert (cost.tokens, cost.seconds) == (310, 1.5)


def test_the_particles_are_kept_one_by_one_and_equal_ones_told():
    run = run_of([trajectory("a", 1.0), trajectory("b", 0.0), trajectory("a", 1.0), trajectory("c", 0.5)])
    kept = particles_of(replace(run, population=replace(run.population, values=np.array([0.25, 1 / 3, 0.5, 1.0]))))
    assert kept == Particles(returns=(1.0, 0.0, 1.0, 0.5), values=(0.25, 0.333333, 0.5, 1.0), same_as=(0, 1, 0, 3))
    failed = run_of([trajectory("a", 0.4), trajectory("b", 0.0)], log_weights=[-np.inf, 0.0], failed=(True, False))
    assert particles_of(failed).returns == (0.0,)
