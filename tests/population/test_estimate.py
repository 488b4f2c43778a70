"""`graph.estimate` and `amc estimate`: what a call costs, by a plain run, against what it really costs."""

from __future__ import annotations

import pytest

from amc_agents import AmcSettings, AtSteps, EveryStep, amc, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.prices import Price
from tests.population.worlds import ReturnSoFar, SumWorld, number_agent, start, sum_world

FACTOR, MEAN_FACTOR = 3.0, 1.5
"""An estimate of the policy's tokens is within this factor of the measured run: of one run, and of several together."""


def estimated_and_measured(number):
    """Tokens by role in the crafting world, as estimated and as measured."""
    task = generate_task(number, "examples", optimal_steps=(6, 8))
    graph = amc(text_agent(EmbeddedChatModel(temperature=0.4)), "embedded:crafting",
                environment=lambda state: (CraftingWorld(), task), n_particles=15, resample=AtSteps(4, 8), beta=0.1,
                horizon=20, seed=1)  # fmt: skip
    given = {"messages": [("user", task.instruction)]}
    estimate = graph.estimate(given)
    with graph.run(given) as run:
        measured = run.usage
    return [(estimate.usage[role].tokens, measured[role].tokens) for role in ("policy", "critic")]


@pytest.mark.thorough
def test_an_estimate_in_the_crafting_world_is_within_the_stated_factor():
    policy, critic = zip(*(estimated_and_measured(number) for number in range(5)), strict=True)
    ratios = [guess / real for guess, real in policy]
    assert all(1 / FACTOR <= ratio <= FACTOR for ratio in ratios), ratios
    together = sum(guess for guess, _ in policy) / sum(real for _, real in policy)
    assert 1 / MEAN_FACTOR <= together <= MEAN_FACTOR, together
    assert all(guess >= real for guess, real in critic), "equal prompts of particles are scored once"


def test_it_is_exact_where_all_particles_are_alike():
    graph = amc(
        number_agent(),
        ReturnSoFar(),
        environment=sum_world,
        n_particles=6,
        resample=EveryStep(),
        settings=AmcSettings(quorum=4),
        stop_at=1.0,
        seed=1,
    )
    estimate = graph.estimate(start())
    assert (estimate.n_particles, estimate.usage["policy"].calls) == (6, 24)
    assert SumWorld.made == 1, "a plain run has a single world"
    assert SumWorld.open == 0
    assert graph.run(start(), {"recursion_limit": 50}).config["n_particles"] == 6, "the graph itself is unchanged"
    assert "policy: 24 calls" in str(estimate)
    assert estimate.cost({"": Price(1.0, 1.0)}).total == 0.0


@pytest.mark.thorough
def test_the_command(command, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from amc_agents import amc, text_agent\n"
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "from amc_agents.models.embedded import EmbeddedChatModel\n"
        "model = EmbeddedChatModel(seed=1)\n"
        "def ask(state):\n    return {'messages': [model.invoke(state['messages'])]}\n"
        "builder = StateGraph(MessagesState)\n"
        "builder.add_node('ask', ask)\nbuilder.add_edge(START, 'ask')\n"
        "plain = builder.compile()\n"
        "graph = amc(plain, 'uniform', step_after='ask', stateless_tools=True, n_particles=4)\n"
    )
    (tmp_path / "amc.toml").write_text("[prices.crafting]\ninput = 1000.0\noutput = 1000.0\n")
    monkeypatch.chdir(tmp_path)
    code, printed, _ = command("estimate", "mine:plain", "--input", "craft a gate", "--config", "amc.toml")
    assert code == 0
    assert "15 calls" in printed
    assert "15 particles cost about $" in printed
    code, printed, _ = command("estimate", "mine:graph", "--input", "craft a gate")
    assert "4 calls" in printed
    assert "4 particles cost about at least $0.0000 (no price for amc_agents:crafting)" in printed
    code, printed, _ = command("estimate", "mine:graph", "--input", "craft a gate", "--particles", "8")
    assert "8 calls" in printed
    code, _, told = command("estimate", "mine:nothing", "--input", "x")
    assert code == 2
    assert "cannot be imported" in told
