"""The plain loop is the text agent: same dialogues, same luck, same results."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from amc_agents import amc as amc_graph
from amc_agents.bench.methods import (
    Method,
    TreeSettings,
    Tuned,
    amc,
    amc_hidden,
    amc_several,
    best_of_n,
    react_greedy,
    vote,
)
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.records import RunResult
from amc_agents.bench.runner import run_one
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.run import Run

AMC = Tuned(temperature=1.0, steps=(3, 6, 9), beta=0.05)
KEEPING = replace(amc_hidden(AMC), finished="keep")
METHODS = (amc(AMC), KEEPING, amc_several(AMC), best_of_n(Tuned(temperature=1.0)), react_greedy(), vote())


def played(plain: bool, method: Method) -> tuple[RunResult, Run]:
    plan = ComparisonPlan(methods=(method,), n_tasks=1, band=(8, 11), n_particles=6, plain=plain)
    comparison = plan.comparison()
    return asyncio.run(run_one(comparison, 0, comparison.tasks[0], method))


def texts(run: Run) -> list[list[str]]:
    return [[message.text for message in output["messages"]] for output in run.outputs]


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_plain_loop_plays_what_the_graph_plays(method: Method) -> None:
    (graphs, graph_run), (loops, loop_run) = played(False, method), played(True, method)
    assert texts(loop_run) == texts(graph_run)
    assert loops.particles.returns == graphs.particles.returns
    assert loops.particles.same_as == graphs.particles.same_as
    # What a batch's company decides is left out: tokens found in the cache, and the last bits of values.
    assert replace(loop_run.usage["policy"], cached_tokens=0) == replace(graph_run.usage["policy"], cached_tokens=0)
    assert asdict(loops.scores) == pytest.approx(asdict(graphs.scores))


@pytest.mark.parametrize("other", [{"tree": TreeSettings("beam", 2)}, {"trials": 2}])
def test_several_temperatures_are_for_particles_alone(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'best-of-n' has several temperatures"):
        replace(best_of_n(), temperatures=(0.5, 0.7), **other)


@pytest.mark.thorough  # loads the shipped model; tests/population has proposals without it
def test_particles_with_several_proposals_have_their_temperatures_in_turn() -> None:
    greedy = texts(played(True, react_greedy())[1])[0]
    several = texts(played(True, replace(best_of_n(), temperatures=(0.0, 2.0)))[1])
    assert several[0::2] == [greedy] * 3
    assert greedy not in several[1::2]


def test_whoever_listens_hears_every_call() -> None:
    heard = []

    class Listener(BaseCallbackHandler):
        def on_chat_model_start(self, *told: Any, **named: Any) -> None:
            heard.append(named["run_id"])

    task = generate_task(7, "test", optimal_steps=(3, 4))
    agent = plain_text_agent(EmbeddedChatModel())
    graph = amc_graph(agent, n_particles=2, horizon=6, environment=lambda state: (CraftingWorld(), task))
    run = graph.run({"messages": [("user", task.instruction)]}, {"callbacks": [Listener()]})
    assert len(set(heard)) == run.usage["policy"].calls > 2
