"""The spans of LAC's and PNLC's decisions and of PSRL's episodes."""

from __future__ import annotations

import asyncio

import pytest
from langchain.agents import create_agent
from langgraph.store.memory import InMemoryStore
from opentelemetry.trace import StatusCode

from amc_agents import ActorCritic, AtSteps, CritiqueRefine, amc
from amc_agents.errors import CriticError
from tests.lac.test_lac_middleware import GIVEN, an_agent
from tests.pnlc import pnlc_agents
from tests.population.worlds import ReturnSoFar, say, start, sum_world, tool_caller
from tests.psrl import exploring_agents as exploring

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def invoke(agent, given, sync):
    return agent.invoke(given) if sync else asyncio.run(agent.ainvoke(given))


@both_ways
def test_a_decision_has_a_span_with_its_requests_below(seen, sync):
    invoke(an_agent(), GIVEN, sync)
    decisions = seen.named("lac.decision")
    assert decisions
    for decision in decisions:
        assert decision.attributes["amc.usage.policy.calls"] == 2
        assert [span.name for span in seen.below(decision)] == ["chat", "chat"]
    assert len(seen.named("chat")) == 2 * len(decisions), "the deciding model makes no request itself"
    assert "right" not in seen.text


def test_the_record_of_a_decision_is_content(seen_with_content):
    invoke(an_agent(), GIVEN, sync=True)
    assert "right" in seen_with_content.named("lac.decision")[0].attributes["output.value"]


@both_ways
def test_a_decision_that_fails_is_an_error(seen, sync):
    class Fails:
        async def log_odds(self, trajectories):
            raise ConnectionError("gone")

    with pytest.raises(CriticError):
        invoke(an_agent(Fails(), depth=0), GIVEN, sync)
    [decision] = seen.named("lac.decision")
    assert decision.status.status_code is StatusCode.ERROR
    assert decision.attributes["error.type"] == "CriticError"


def test_decisions_of_particles_lie_below_them(seen):
    agent = create_agent(tool_caller(2), [say], middleware=[ActorCritic(k=2, alpha=0.0, seed=0)])
    amc(agent, ReturnSoFar(), environment=sum_world, n_particles=2, resample=AtSteps(1), seed=0).run(start())
    decisions = seen.named("lac.decision")
    agents = {span.context.span_id for span in seen.agents}
    assert len(decisions) == 6
    assert all(decision.parent.span_id in agents for decision in decisions)
    assert {len(seen.below(decision, "chat")) for decision in decisions} == {2}


@both_ways
def test_a_refined_thought_has_a_span(seen, sync):
    refines = CritiqueRefine(pnlc_agents.Reaches(pnlc_agents.WARNS))
    invoke(create_agent(pnlc_agents.walker(), [pnlc_agents.go], middleware=[refines]), GIVEN, sync)
    decisions = seen.named("pnlc.decision")
    assert decisions
    assert sum(len(seen.below(decision, "chat")) for decision in decisions) == len(seen.named("chat"))


@both_ways
def test_hypotheses_and_posteriors_have_spans(seen, sync):
    invoke(exploring.an_agent(InMemoryStore()), exploring.GIVEN, sync)
    assert [span.name for span in seen.spans if span.name.startswith("psrl")] == ["psrl.hypothesis", "psrl.posterior"]
    [posterior] = seen.named("psrl.posterior")
    assert posterior.attributes["amc.n_steps"] == 2
    assert "Beta" not in seen.text
