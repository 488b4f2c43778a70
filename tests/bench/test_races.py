"""Races as methods of a comparison: their answers are scored, and what the stopped particles spent is counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from pydantic import Field

from amc_agents.bench.methods import RACES, Tuned, best_of_n, chosen, races, react
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.report import summarise
from amc_agents.bench.report_tables import deployment_lines, markdown
from amc_agents.bench.runner import PlannedRuns, compare, estimate_runs, run_one
from amc_agents.bench.selection import MethodChoice
from amc_agents.errors import ConfigurationError
from amc_agents.smc import Adaptive
from amc_agents.types import TimeStep
from tests.bench.coins import BitWorld, Coins, comparison_of_coins

BY_CLOCK, BY_STEPS, BY_TOKENS = RACES.values()


class Patience(BitWorld):
    """Pays for each 0 and ends at the first 1, so that stopped particles may have a higher return than the first."""

    async def step(self, action):
        self.actions.append(int(action))
        if self.actions[-1]:
            return TimeStep.termination("end", 0.0)
        return TimeStep.transition("go on", 0.5)

    async def fork(self, seed):
        copy = Patience()
        copy.actions = list(self.actions)
        return copy


class Counted(Coins):
    """Reports 15 tokens a request."""

    made: ClassVar[int] = 0
    """Number of requests."""

    def _result(self, messages):
        Counted.made += 1
        result = super()._result(messages)
        counts = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        result.generations[0].message.usage_metadata = counts
        return result


def comparison(methods, policy=Counted, **settings):
    given = {"environment": Patience, "horizon": 30, **settings}
    made = comparison_of_coins(methods=methods, **given)
    return replace(made, policy=lambda temperature: policy(respond=lambda messages: "", temperature=temperature))


@pytest.mark.parametrize("name", [BY_STEPS, BY_TOKENS])
async def test_the_answer_alone_is_scored_and_all_calls_are_counted(name):
    raced = comparison(chosen(races(best_of_n()), [name]), n_particles=6)
    higher = 0
    for seed in range(5):
        Counted.made = 0
        result, run = await run_one(raced, seed, raced.tasks[0], raced.methods[0])
        paths = run.population.trajectories
        assert run.best.done
        assert len(run.best.steps) == min(len(path.steps) for path in paths if path.done)
        scores = result.scores
        assert {scores.oracle, scores.deployable, scores.mean, scores.top5} == {run.best.return_}
        assert (scores.particles, result.particles.returns) == (1, (run.best.return_,))
        made = sum(len(path.steps) for path in paths)
        # Requests that were cancelled on their way count too.
        assert result.cost.policy_calls >= Counted.made >= made > len(run.best.steps)
        assert result.cost.policy_output_tokens >= 5 * made
        higher += any(path.return_ > run.best.return_ for path in paths)
    assert higher, "some stopped particle has a higher return"


class Slow(Counted):
    """Says 1 and 0; the answer with 0 never comes. An answer has at most 40 tokens."""

    said: Any = Field(default_factory=lambda: iter("10"))

    def _get_ls_params(self, stop=None, **options):
        return {**super()._get_ls_params(stop, **options), "ls_max_tokens": 40}

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        answer = await super()._agenerate(messages, stop, run_manager, **options)
        bit = next(self.said)
        answer.generations[0].message.content = f"Action: {bit}"
        if bit == "0":
            await asyncio.sleep(600)
        return answer


async def test_a_cancelled_request_counts_what_was_reserved():
    raced = comparison(chosen(races(best_of_n()), [BY_CLOCK]), Slow, n_particles=2)
    result, _ = await asyncio.wait_for(run_one(raced, 0, raced.tasks[0], raced.methods[0]), 60)
    assert (result.cost.policy_calls, result.cost.calls_without_usage) == (2, 0)
    assert result.cost.policy_output_tokens == 5 + 40


async def test_tables_compare_races_with_the_plain_agent(tmp_path):
    raced = comparison([react(), best_of_n(), *races(best_of_n())], n_tasks=4)
    results = summarise(await compare(raced, tmp_path), raced.methods, raced.settings)
    text = markdown(results)
    (row,) = (line for line in text.splitlines() if line.startswith("| race by steps | "))
    assert row.split(" | ").count("-") == 4  # Top 5, mean, and both of distinct trajectories.
    assert "A race is scored by its answer" in text
    assert "| race by steps - Best-of-N | deployable pick |" in text
    line = next(line for line in deployment_lines(results) if line.startswith("race by the clock"))
    race, plain = (results.of(name).cost for name in (BY_CLOCK, "react"))
    assert f"{race.policy_calls:,.0f} (x {race.policy_calls / plain.policy_calls:.1f}) model calls" in line
    assert line.endswith(f", {race.seconds:.1f} (x {race.seconds / plain.seconds:.1f}) s")
    assert results.of(BY_STEPS).settings["race"]["by"] == "steps"


async def test_the_estimate_takes_no_race_for_cheaper_than_its_particles():
    raced = comparison(chosen(races(best_of_n()), [BY_STEPS]), n_particles=6)
    (estimate,) = await estimate_runs(raced, [PlannedRuns(BY_STEPS, None, 10)])
    assert estimate.policy_calls >= 60


def test_races_are_named_and_have_the_temperature_of_best_of_n():
    plan = ComparisonPlan((), 1)
    plan, notes = MethodChoice(["race"], {"best-of-n": Tuned(0.3)}, finish=2).applied_to(plan)
    assert ([method.name for method in plan.methods], notes) == ([BY_CLOCK, BY_STEPS, BY_TOKENS], [])
    assert {(method.temperature, method.race.finish) for method in plan.methods} == {(0.3, 2)}
    assert plan.methods[0].label == "race by the clock, first 2"


@pytest.mark.parametrize(
    ("finish", "settings", "message"),
    [
        (2, {"critic": "uniform"}, "a critic that predicts the whole return must choose"),
        (9, {}, "finish=9 takes as many particles, got 4"),
        (1, {"n_particles": Adaptive(1, 2)}, "a fixed number of particles"),
    ],
)
def test_an_impossible_race_is_refused_before_anything_is_played(finish, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        comparison(races(best_of_n(), finish), **settings)


async def test_a_critic_chooses_among_the_first_two():
    raced = comparison(chosen(races(best_of_n(), 2), [BY_STEPS]), n_particles=6)
    results = [await run_one(raced, seed, raced.tasks[0], raced.methods[0]) for seed in range(5)]
    assert all(result.scores.deployable == run.best.return_ for result, run in results)
    # The critic values the share of ones, so it takes the shorter of two.
    assert all(
        len(run.best.steps) == min(len(path.steps) for path in run.population.trajectories if path.done)
        for _, run in results
    )
