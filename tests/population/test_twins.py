"""Notes on identical particles, with and without resampling; agreement by chance is not noted."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from amc_agents.population.conclusion import _warn
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep, Never
from tests.arguments import arguments
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, start, sum_world
from tests.variants import variants


def notes(respond, n_particles=5, length=4, **settings):
    graph = amc(
        number_agent(respond),
        ReturnSoFar(),
        **arguments(environment=lambda state: sum_world(state, length), n_particles=n_particles, **settings),
    )
    return [note for note in graph.run(start()).notes if "gave the same answer" in note]


def fixed(messages):
    return f"Thought: as always\nAction: {len(messages)}"


@pytest.mark.thorough
@pytest.mark.parametrize("resample", [Never(), AtSteps(2), AtSteps(1, 3), EveryStep()], ids=str)
@pytest.mark.parametrize("finished", ["retire", "keep"])
@pytest.mark.parametrize("n_particles", [2, 5])
def test_identical_particles_are_noted_with_any_resampling(resample, finished, n_particles):
    (note,) = notes(fixed, n_particles, resample=resample, finished=finished)
    assert note.startswith(
        f"all {n_particles} particles gave the same answer at each of 4 steps: is the model's temperature"
    )


def test_the_note_is_logged(caplog):
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        notes(fixed, resample=AtSteps(2))
    assert "gave the same answer" in caplog.text


@pytest.mark.parametrize(("n_particles", "length", "noted"), [(5, 1, True), (4, 1, False), (2, 4, True), (2, 3, False)])
def test_few_repetitions_are_attributed_to_chance(n_particles, length, noted):
    assert bool(notes(fixed, n_particles, length, resample=Never())) == noted


def test_a_single_particle_has_no_twin():
    assert notes(fixed, n_particles=1, length=20, resample=AtSteps(4)) == []


def first_differs():
    """A policy whose answers differ only at the first step."""
    numbers = iter(range(1000))

    def respond(messages):
        return f"Action: {next(numbers)}" if len(messages) == 1 else "Action: 1"

    return respond


@variants("resample", [Never(), AtSteps(1), EveryStep()], ids=str)
def test_particles_that_differed_once_are_not_noted(resample):
    # At beta 1, all descend from the particle with the largest first number.
    assert notes(first_differs(), 5, 6, resample=resample, beta=1.0) == []


def last_differs():
    numbers = iter(range(1000))
    return lambda messages: f"Action: {next(numbers)}" if len(messages) == 11 else "Action: 1"


@variants("resample", [Never(), AtSteps(2)], ids=str)
def test_particles_that_differ_only_at_the_last_step_are_not_noted(resample):
    assert notes(last_differs(), 5, 6, resample=resample) == []


def test_failed_particles_do_not_hide_identical_ones():
    calls = iter(range(1000))

    def respond(messages):
        if next(calls) == 0:
            raise RuntimeError("lost")
        return fixed(messages)

    assert len(notes(respond, 5, resample=AtSteps(2))) == 1


def test_particles_whose_worlds_answer_differently_are_not_noted():
    class Dice(SumWorld):
        async def step(self, action):
            answer = await super().step(action)
            return replace(answer, observation=f"dice {id(self)}")

    run = amc(number_agent(lambda messages: "Action: 1"), environment=lambda state: (Dice(), TASK), n_particles=6,
              resample=Never()).run(start())  # fmt: skip
    assert len({trajectory.steps[0].action for trajectory in run.population.trajectories}) == 1
    assert not any("gave the same answer" in note for note in run.notes)
