from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amc_agents.population.conclusion import eligible_of, select_index
from amc_agents.population.feature import Features, Stop
from amc_agents.population.particle import Particle, Past
from amc_agents.run import Population
from amc_agents.types import Step, Task, Trajectory

NAN = float("nan")


def population(*, values, log_weights, returns=(0.0, 1.0, 2.0)):
    task = Task("t", "do it")
    return Population(
        trajectories=tuple(Trajectory(task, (Step("a", reward=reward),), done=True) for reward in returns),
        log_weights=np.array(log_weights),
        log_weights_since=np.zeros(3),
        values=np.array(values),
    )


@pytest.mark.parametrize(
    ("select", "values", "log_weights", "expected"),
    [
        ("return", [9.0, 0.0, 0.0], [0.0, 0.0, 0.0], 2),
        ("return", [9.0, 0.0, 0.0], [0.0, 0.0, -np.inf], 1),
        ("value", [1.0, 3.0, 2.0], [0.0, 0.0, 0.0], 1),
        ("value", [1.0, 3.0, 2.0], [0.0, -np.inf, 0.0], 2),
        ("weight", [9.0, 9.0, 0.0], [-2.0, -3.0, -1.0], 2),
        # Any known value beats an unknown value.
        ("value", [NAN, -5.0, -4.0], [0.0, -1.0, -1.0], 2),
        ("value", [NAN, -5.0, NAN], [0.0, -1.0, 0.0], 1),
        # No live particle has a known value: by weight.
        ("value", [NAN, 5.0, NAN], [-1.0, -np.inf, 0.0], 2),
        ("value", [NAN, NAN, NAN], [-1.0, -2.0, -3.0], 0),
    ],
)
def test_the_largest_known_score_of_a_live_particle_is_selected(select, values, log_weights, expected):
    given = population(values=values, log_weights=log_weights)
    assert select_index(np.random.default_rng(0), given, select) == expected


def test_a_sample_follows_the_weights():
    given = population(values=[0.0, 0.0, 0.0], log_weights=[np.log(0.5), -np.inf, np.log(0.5)])
    rng = np.random.default_rng(0)
    assert {select_index(rng, given, "sample") for _ in range(64)} == {0, 2}


def test_a_particle_that_failed_since_the_last_weighing_is_not_the_answer_of_a_run_that_was_cut():
    pasts = {"failed": Past({}, None, error=ConnectionError()), "finished": Past({}, None, finished=True),
             "unfinished": Past({}, None)}  # fmt: skip
    particles = [Particle(past, np.random.default_rng(0)) for past in pasts.values()]
    system: Any = SimpleNamespace(features=Features([], {}), stop=Stop("run_timeout", abrupt=True), everyone=particles)
    everyone = population(values=[NAN] * 3, log_weights=[0.0] * 3, returns=(9.0, 3.0, 5.0))
    assert select_index(np.random.default_rng(0), eligible_of(system, everyone), "return") == 1
