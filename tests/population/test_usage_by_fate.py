"""`run.usage_by_fate`: what the policy's calls were paid for."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from amc_agents import Budget, Usage, actor_critic_model
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import TASK, EndsByNine, Prefers, ReturnSoFar, digits, start, sum_world


def counted(messages):
    usage = UsageMetadata(input_tokens=4, output_tokens=6, total_tokens=10)
    return AIMessage(digits(messages), usage_metadata=usage)


def run_of(critic=None, model=None, **settings):
    given = {"environment": sum_world, "n_particles": 6, "resample": AtSteps(2), "beta": 1.0, "seed": 3, **settings}
    agent = text_agent(model or ScriptedChatModel(respond=counted))
    with amc(agent, critic or ReturnSoFar(), **arguments(**given)).run(start()) as run:
        return run


def calls(run):
    return {fate: usage.calls for fate, usage in run.usage_by_fate.items()}


def test_without_resampling_the_winner_made_its_own_calls():
    assert calls(run_of(resample=Never())) == {"winner": 4, "survivors": 20}


@pytest.mark.thorough  # quick: test_slots_of_finished_particles_are_refilled
def test_the_past_that_a_winner_shares_is_the_winners():
    """All particles descend from slot 0, whose two steps are everybody's past."""
    run = run_of(Prefers(slot=0))
    assert run.history[0].ancestors is not None
    assert run.history[0].ancestors.tolist() == [0] * 6
    assert calls(run) == {"winner": 2 + 2, "survivors": 5 * 2, "pruned": 5 * 2}


def test_slots_of_finished_particles_are_refilled():
    run = run_of(environment=lambda state: (EndsByNine(), TASK), resample=EveryStep(), n_particles=12, seed=5)
    assert any(point.retired for point in run.history)
    assert calls(run)["refilled"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("resample", [AtSteps(1, 3), EveryStep(), EssBelow(0.9), Never()])
@pytest.mark.parametrize("seed", range(4))
def test_the_fates_add_up_to_the_usage_of_the_policy(resample, seed):
    run = run_of(resample=resample, seed=seed, environment=lambda state: (EndsByNine(), TASK), n_particles=9,
                 finished=["retire", "keep"][seed % 2])  # fmt: skip
    assert sum(run.usage_by_fate.values(), Usage()) == run.usage["policy"]
    line = run.usage_by_fate["winner"]
    assert line.calls >= len(run.best.steps) if run.best_index >= 0 else True
    assert all(usage.calls > 0 for usage in run.usage_by_fate.values())


def test_failed_and_unfinished_particles():
    failing = [True]

    def respond(messages):
        if len(messages) > 3 and failing:
            failing.clear()
            raise ValueError("no")
        return counted(messages)

    run = run_of(model=ScriptedChatModel(respond=respond), resample=Never(), budget=Budget(calls=17))
    fates = calls(run)
    assert fates["failed"] == 3, "two answers, and the request that failed"
    assert fates["unfinished"] > 0
    assert sum(fates.values()) == run.usage["policy"].calls == 17


def test_calls_of_critics_inside_particles_are_not_the_policys():
    model = actor_critic_model(ScriptedChatModel(respond=counted), "uniform", k=2)
    run = run_of(model=model)
    assert sum(run.usage_by_fate.values(), Usage()) == run.usage["policy"] == Usage(48, 192, 288)


def test_the_summary_and_the_plain_values_show_them():
    run = run_of(Prefers(slot=0))
    shown = "usage      policy by fate: winner 4 calls (40 tokens), survivors 10 calls (100 tokens), pruned 10 calls ("
    assert shown in repr(run)
    assert len(repr(run).splitlines()) <= 20
    assert run.as_plain()["usage_by_fate"]["pruned"]["calls"] == 10
    assert np.isfinite(run.log_evidence)
