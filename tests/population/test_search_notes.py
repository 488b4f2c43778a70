"""Notes on runs whose search could not help."""

import numpy as np
import pytest

from amc_agents import AmcSettings
from amc_agents.population import conclusion
from amc_agents.population.features.search_notes import search_notes as search_notes_of
from amc_agents.population.settings import Settings
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep, Never
from tests.arguments import arguments
from tests.population.worlds import (
    ReturnSoFar,
    digits,
    number_agent,
    start,
    sum_world,
)
from tests.variants import variants


def search_notes(run):
    return [note for note in run.notes if note.startswith(("the search did nothing", "the pick is arbitrary"))]


def test_a_search_with_equal_weights_is_noted_with_advice(caplog):
    conclusion._warn.cache_clear()
    # Returns between 0 and 9 at beta 1e4: the ESS is 8 to four digits, with or without a critic.
    for critic in (ReturnSoFar(), "uniform"):
        run = amc(number_agent(), critic, environment=sum_world, n_particles=8, resample=AtSteps(1, 3), beta=1e4,
                  seed=0).run(start())  # fmt: skip
        (note,) = search_notes(run)
        assert all(word in note for word in ("95%", "beta (10000)", "AtSteps(1, 3)", run.config["critic"]))
        assert [record.message for record in caplog.records].count(note) == 1
        amc(number_agent(), critic, environment=sum_world, n_particles=8, resample=AtSteps(1, 3), beta=1e4).run(start())
        assert [record.message for record in caplog.records].count(note) == 1, "logged once for the same settings"


def test_a_run_that_timed_out_before_the_first_weighing_has_no_search_notes():
    assert search_notes_of([], Settings(), None, stopped=True) == []


def test_a_search_with_one_uneven_point_is_not_noted():
    class UnevenAtThree(ReturnSoFar):
        async def values(self, trajectories):
            return await super().values(trajectories) * (len(trajectories[0].steps) == 3)

    settings = {"environment": sum_world, "n_particles": 8, "hide_rewards": True, "seed": 0, "beta": 0.1}
    run = amc(number_agent(), UnevenAtThree(), **arguments(resample=AtSteps(1, 3), **settings)).run(start())
    assert run.history[0].ess == pytest.approx(8)
    assert run.history[1].ess < 0.95 * 8
    assert search_notes(run) == []


def test_failed_particles_do_not_make_weights_look_uneven():
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("model down") if answer.endswith(("7", "8", "9")) and len(messages) == 1 else answer

    run = amc(
        number_agent(respond),
        environment=sum_world,
        n_particles=10,
        settings=AmcSettings(quorum=1),
        resample=AtSteps(2),
        beta=1e4,
        seed=4,
    ).run(start())
    assert np.isneginf(run.history[0].log_weights).sum() > 1
    assert len(search_notes(run)) == 1


def test_runs_that_end_before_the_first_weighing_point_are_noted():
    short = {"environment": lambda state: sum_world(state, 3), "n_particles": 4, "resample": AtSteps(4)}
    (note,) = search_notes(amc(number_agent(), ReturnSoFar(), **arguments(**short)).run(start()))
    assert "before the first weighing point of AtSteps(4), so the run was Best-of-N: weigh at earlier steps" in note
    at_once = {"environment": lambda state: sum_world(state, 1), "n_particles": 4, "resample": EveryStep()}
    (note,) = search_notes(amc(number_agent(), ReturnSoFar(), **arguments(**at_once)).run(start()))
    assert note.endswith("so the run was Best-of-N"), "there are no earlier steps"
    assert search_notes(amc(number_agent(), **arguments(**short | {"resample": Never()})).run(start())) == []
    assert search_notes(amc(number_agent(), n_particles=1, environment=sum_world).run(start())) == []
    stopped = amc(number_agent(), **arguments(stop_at=0.0, **short)).run(start())
    assert search_notes(stopped) == []


@variants("schedule", [Never(), AtSteps(2)])
def test_a_selection_among_equal_values_is_noted_as_arbitrary(schedule):
    blind = {"environment": sum_world, "n_particles": 4, "hide_rewards": True, "resample": schedule}
    assert (
        "the pick is arbitrary" in search_notes(amc(number_agent(), "uniform", **arguments(**blind)).run(start()))[-1]
    )
    assert search_notes(amc(number_agent(), ReturnSoFar(9.0), **arguments(**blind, seed=1)).run(start())) == []
