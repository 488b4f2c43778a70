"""`max_concurrency` of a call limits how many particles, and how many candidates of a decision, run at a time."""

from __future__ import annotations

import asyncio
import time

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from amc_agents import Budget, actor_critic_model, actor_critic_node, critique_refine_model
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.pnlc.pnlc_agents import Reaches, mind
from tests.population.worlds import digits, start, sum_world
from tests.variants import variants

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Watched(ScriptedChatModel):
    """Counts how many requests are in progress at a time."""

    most: list[int]
    now: list[int]

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.now.append(1)
        self.most.append(len(self.now))
        time.sleep(0.02)
        self.now.pop()
        return self._result(messages)

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        self.now.append(1)
        self.most.append(len(self.now))
        await asyncio.sleep(0.002)
        self.now.pop()
        return self._result(messages)


def watched(respond=digits):
    return Watched(respond=respond, most=[], now=[])


def limited(limit):
    return RunnableConfig(max_concurrency=limit)


@pytest.mark.thorough
@both_ways
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_particles(sync, limit):
    model = watched()
    graph = amc(text_agent(model), environment=sum_world, n_particles=8, resample=AtSteps(2), beta=1.0, seed=1)
    run = graph.run(start(), limited(limit)) if sync else asyncio.run(graph.arun(start(), limited(limit)))
    run.close()
    assert max(model.most) == min(limit, 8)
    free = graph.run(start())
    assert free.log_evidence == run.log_evidence, "the limit changes the time, not the result"


@both_ways
def test_without_a_limit_all_particles_run_side_by_side(sync):
    model = watched()
    graph = amc(text_agent(model), environment=sum_world, n_particles=8, resample=Never())
    (graph.run(start()) if sync else asyncio.run(graph.arun(start()))).close()
    assert max(model.most) == 8


def test_the_agents_own_tasks_are_limited_as_langgraph_does():
    """Also in a sync call, where the requests of nodes that are coroutines go to the model's sync client."""
    model = watched(lambda messages: "hi")
    graph = StateGraph(MessagesState)
    for name in "abcd":

        async def ask(state):
            return {"messages": [await model.ainvoke("hello")]}

        graph.add_node(name, ask)
        graph.add_edge(START, name)
    agent = amc(graph.compile(), "uniform", step_after=["a"], stateless_tools=True, n_particles=1, resample=Never())
    agent.run(start(), limited(2))
    assert max(model.most) == 2


@both_ways
def test_candidates_of_lac(sync):
    model = watched(lambda messages: "Action: go")
    deciding = actor_critic_model(model, "uniform", k=6)
    if not sync:
        asyncio.run(deciding.ainvoke("hello", limited(2)))
        assert max(model.most) == 2
        model.most.clear()
        asyncio.run(deciding.ainvoke("hello"))
        assert max(model.most) == 6
    else:
        deciding.invoke("hello", limited(2))


@pytest.mark.thorough  # quick: the limits of particles in this file
def test_candidates_in_a_graph_and_in_particles():
    model = watched(lambda messages: "Action: 1")
    graph = StateGraph(MessagesState)
    graph.add_node("decide", actor_critic_node(model, "uniform", k=6))
    graph.add_edge(START, "decide")
    asyncio.run(graph.compile().ainvoke(start(), limited(2)))
    assert max(model.most) == 2
    model.most.clear()
    agent = amc(graph.compile(), "uniform", step_after="decide", n_particles=3, resample=Never())
    agent.run(start(), limited(1))
    assert max(model.most) == 1


def test_requests_of_pnlc():
    model = mind(lambda messages: "Thought: I go left.\nAction: left")
    quiet = Watched(respond=model.respond, most=[], now=[])
    asyncio.run(critique_refine_model(quiet, Reaches(), k=4, refine=False).ainvoke("which?", limited(1)))
    assert max(quiet.most) == 1
    quiet.most.clear()
    asyncio.run(critique_refine_model(quiet, Reaches(), k=4, refine=False).ainvoke("which?"))
    assert max(quiet.most) > 1


def test_a_judge():
    asked, most = [], []

    class Judge(ScriptedChatModel):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            asked.append(1)
            most.append(len(asked))
            time.sleep(0.005)
            asked.pop()
            return self._result(messages)

    judge = JudgeCritic(Judge(respond=lambda messages: "Score: 0.5"))
    graph = amc(text_agent(ScriptedChatModel(respond=digits)), judge, environment=sum_world, n_particles=6,
                resample=AtSteps(2), seed=2)  # fmt: skip
    graph.run(start(), limited(2)).close()
    assert max(most) <= 2


@variants("calls", [9, 14, 40])
def test_a_budget_is_not_blocked_by_particles_that_wait_for_their_turn(calls):
    budget = Budget(calls=calls)
    graph = amc(text_agent(watched()), environment=sum_world, n_particles=6, resample=AtSteps(2), seed=3, budget=budget)
    run = graph.run(start(), limited(2))
    run.close()
    assert run.best.done
    assert run.usage["policy"].calls == min(calls, 24)
