"""The methods inside each other, and populations as parts of larger graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from amc_agents import ActorCritic, AtSteps, CritiqueRefine, PosteriorSampling, amc
from amc_agents.models.seeding import particle_rng
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.testing.scripted import ScriptedChatModel
from tests.pnlc import pnlc_agents
from tests.population.worlds import ReturnSoFar, SumWorld, number_agent, say, start, sum_world
from tests.psrl import exploring_agents as exploring
from tests.variants import variants

N, K = 4, 3


def caller(n_calls=4):
    """Calls `say` with a digit from the particle's stream `n_calls` times, then stops."""

    def respond(messages):
        rounds = sum(isinstance(message, ToolMessage) for message in messages)
        if rounds == n_calls:
            return "done"
        number = int((particle_rng() or np.random.default_rng()).integers(10))
        return AIMessage("", tool_calls=[{"name": "say", "args": {"number": number}, "id": f"call-{rounds}"}])

    return ScriptedChatModel(respond=respond)


class LikesLarge:
    """A verdict critic whose log-odds grow with the digit that a call says."""

    async def log_odds(self, trajectories):
        return np.array([sum(map(int, filter(str.isdigit, t.steps[-1].action))) for t in trajectories], dtype=float)


def population(middleware=(), **settings):
    agent = create_agent(caller(), [say], middleware=middleware)
    return amc(agent, ReturnSoFar(), environment=sum_world, n_particles=N, resample=AtSteps(2), **settings)


@pytest.mark.thorough
def test_lac_decides_every_step_of_every_particle():
    chooses = ActorCritic(LikesLarge(), k=K, alpha=9.0, depth=0, seed=0)
    decided, again = (population([chooses], seed=5).run(start()) for _ in range(2))
    assert [point.step for point in decided.history if point.ancestors is not None] == [2]
    assert decided.usage["policy"].calls == N * (SumWorld().length + 1) * K, "and the final answer"
    assert [step.action for step in decided.best.steps] == [step.action for step in again.best.steps]
    means = [np.mean([mean_return(population(middleware, seed=seed).run(start())) for seed in range(3)])
             for middleware in ([chooses], [])]  # fmt: skip
    assert means[0] > means[1] + 3, "the likely largest of three digits, against any digit"


def mean_return(run):
    return np.mean([trajectory.return_ for trajectory in run.population.trajectories])


@pytest.mark.parametrize("order", ["PSRL outside", "PNLC outside"])
def test_pnlc_inside_psrl_refines_the_hypothesis_action_and_evidence_counts_once(order):
    pull, pulled = exploring.machine()
    prompts: list[str] = []
    player = exploring.player(n_pulls=1, prompts=prompts)
    model = pnlc_agents.mind(player.respond)
    exploration = PosteriorSampling(exploring.exact_roles(), prior=exploring.PRIOR, seed=3,
                                    namespace=exploring.NAMESPACE, world=exploring.RULES)  # fmt: skip
    critic = pnlc_agents.Reaches()
    both = [exploration, CritiqueRefine(critic, n_positive=1, n_negative=1)]
    store = InMemoryStore()
    agent = create_agent(model, [pull], middleware=both if order == "PSRL outside" else both[::-1], store=store)
    for n_runs in (1, 2):
        agent.invoke(exploring.GIVEN)
        posterior = asyncio.run(StorePosterior(store, exploring.NAMESPACE).head())
        assert exploring.counts(posterior.text).sum() == len(pulled) == n_runs
    assert critic.asked, "each turn was criticised"
    assert all("<hypothesis>" in prompt for prompt in prompts)


def two_populations(**settings):
    def particles(length, seed):
        return amc(number_agent(), ReturnSoFar(), environment=lambda state: sum_world(state, length), seed=seed,
                   n_particles=N, resample=AtSteps(1))  # fmt: skip

    graph = StateGraph(MessagesState)
    graph.add_node("first", particles(2, 1))
    graph.add_node("second", particles(3, 2))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    return graph.compile(**settings)


@variants("saver", [None, InMemorySaver()], ids=["no checkpointer", "checkpointer"])
def test_two_populations_in_one_graph(saver):
    SumWorld.open = 0
    graph = two_populations(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "a"}}
    events = list(graph.stream(start(), config, stream_mode=["custom", "values"], subgraphs=True))
    runs = [event["run"] for _, mode, event in events if mode == "custom" and event["type"] == "amc.run"]
    assert [len(run.best.steps) for run in runs] == [2, 3]
    messages = events[-1][2]["messages"]
    assert [message.type for message in messages] == ["human", *["ai", "human"] * 5]
    assert len({message.id for message in messages}) == len(messages)


def particles(**settings):
    return amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=N, resample=AtSteps(2), **settings)


def actions(messages):
    return [message.text.removeprefix("Thought: any\nAction: ") for message in messages if message.type == "ai"]


@pytest.mark.thorough  # quick: test_two_populations_in_one_graph
def test_two_populations_side_by_side_share_nothing():
    graph = StateGraph(MessagesState)
    for name, seed in (("one", 1), ("other", 2)):
        graph.add_node(name, particles(seed=seed))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    together = graph.compile(checkpointer=InMemorySaver()).invoke(start(), {"configurable": {"thread_id": "a"}})
    alone = [step.action for seed in (1, 2) for step in particles(seed=seed).run(start()).best.steps]
    assert sorted(actions(together["messages"])) == sorted(alone)


def supervisor(delegate):
    """An agent that delegates the question once and reports the answer."""

    def respond(messages):
        if isinstance(messages[-1], ToolMessage):
            return f"They said: {messages[-1].text}"
        return AIMessage("", tool_calls=[{"name": delegate.name, "args": {"question": "Say numbers."}, "id": "1"}])

    return create_agent(ScriptedChatModel(respond=respond), [delegate], checkpointer=InMemorySaver())


@variants("asynchronous", [False, True], ids=["sync", "async"])
def test_a_population_answers_as_a_supervisors_subagent(asynchronous):
    graph = particles(seed=1)

    @tool
    def ask(question: str) -> str:
        """Ask the population."""
        return " ".join(actions(graph.invoke({"messages": [HumanMessage(question)]})["messages"]))

    @tool("ask")
    async def ask_async(question: str) -> str:
        """Ask the population."""
        return " ".join(actions((await graph.ainvoke({"messages": [HumanMessage(question)]}))["messages"]))

    agent, config = supervisor(ask_async if asynchronous else ask), {"configurable": {"thread_id": "a"}}
    given = {"messages": [("user", "What do they say?")]}
    answer = asyncio.run(agent.ainvoke(given, config)) if asynchronous else agent.invoke(given, config)
    expected = " ".join(step.action for step in graph.run(start()).best.steps)
    assert answer["messages"][-1].text == f"They said: {expected}"
    assert [message.type for message in answer["messages"]] == ["human", "ai", "tool", "ai"]


def test_a_population_in_the_functional_api():
    SumWorld.open = 0
    graph = particles(seed=1)
    calls = []

    @task
    def search(question: str) -> list[str]:
        calls.append(question)
        return actions(graph.invoke({"messages": [HumanMessage(question)]})["messages"])

    @entrypoint(checkpointer=InMemorySaver())
    def workflow(question: str) -> dict[str, Any]:
        found = search(question).result()
        return {"found": found, "approved": interrupt(found)}

    config: Any = {"configurable": {"thread_id": "a"}}
    workflow.invoke("Say numbers.", config)
    output = workflow.invoke(Command(resume="yes"), config)
    assert output["approved"] == "yes"
    assert output["found"] == [step.action for step in graph.run(start()).best.steps]
    assert len(calls) == 1, "the search is not repeated after the interrupt"
