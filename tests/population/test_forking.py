"""The stored past of particles: one checkpoint for each fork, and nothing else."""

import itertools
import operator
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, ToolCallLimitMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from amc_agents import AmcSettings
from amc_agents.models.seeding import particle_rng
from amc_agents.population.saver import ForkSaver
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import effect
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import TASK, Prefers, SumWorld, number_agent, start
from tests.variants import variants


class Watched(ForkSaver):
    """Counts the stored checkpoints, and the checkpoints and messages of copied threads."""

    last: ForkSaver

    def __init__(self):
        super().__init__()
        self.puts, self.copied, self.retained = 0, [], []
        Watched.last = self

    def put(self, *args):
        self.puts += 1
        return super().put(*args)

    def copy_thread(self, source, target):
        super().copy_thread(source, target)
        self.copied.append(sum(map(len, self._threads[target].checkpoints.values())))
        lists = {
            id(values["messages"]): len(values["messages"])
            for thread in self._threads.values()
            for saved in thread.checkpoints[""].values()
            if "messages" in (values := saved.checkpoint["channel_values"])
        }
        self.retained.append(sum(lists.values()))


@pytest.fixture
def saver(monkeypatch):
    monkeypatch.setattr("amc_agents.population.start.ForkSaver", Watched)
    return Watched


class Alternating:
    """A critic that prefers every second particle, so that each resampling forks."""

    async def values(self, trajectories):
        return 9.0 * (np.arange(len(trajectories)) % 2)


def played(agent, n_steps, resample, **more):
    settings = {"n_particles": 6, "resample": resample, "seed": 3, "horizon": n_steps + 1, "hide_rewards": True}
    world = (
        {"environment": lambda state: (SumWorld(n_steps), TASK)}
        if agent.name == "text_agent"
        else {"stateless_tools": True}
    )
    return amc(agent, Alternating(), **arguments(**settings, **world)).run(start() | more)


@pytest.mark.thorough  # quick: test_a_fork_saves_and_copies_one_checkpoint_at_any_step
@variants("n_steps", [3, 12])
@variants("resample", [Never(), EssBelow(1e-9)], ids=["never", "never triggered"])
def test_without_forks_only_the_end_of_each_agent_is_saved(saver, n_steps, resample):
    played(number_agent(), n_steps, resample)
    assert saver.last.puts == 6
    assert saver.last.copied == []


@variants("step", [2, 11])
def test_a_fork_saves_and_copies_one_checkpoint_at_any_step(saver, step):
    run = played(number_agent(), 12, AtSteps(step))
    ancestors = run.history[0].ancestors.tolist()
    parents = {source for slot, source in enumerate(ancestors) if slot != source}
    assert saver.last.copied == [1] * sum(slot != source for slot, source in enumerate(ancestors))
    discarded = 6 - len(set(ancestors))
    assert saver.last.puts == len(parents) + discarded + 6


@pytest.mark.thorough  # quick: test_a_fork_saves_and_copies_one_checkpoint_at_any_step
def test_retained_messages_grow_linearly_with_the_steps(saver):
    played(number_agent(), 12, EveryStep())
    assert set(saver.last.copied) == {1}
    assert max(saver.last.retained) <= 6 * (1 + 2 * 11)


def stepping(state_type, act, *, n_messages=20):
    """An agent whose node `tools` runs until the state has `n_messages` messages."""
    builder = StateGraph(state_type)
    builder.add_node("tools", act)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) >= n_messages else "tools")
    return builder.compile()


def step_messages(number):
    return [AIMessage(f"Action: {number}"), HumanMessage("ok")]


def draw():
    return int(particle_rng().integers(100))


def whole_log(so_far, writes):
    return [*so_far, *(item for write in writes for item in write)]


@pytest.mark.thorough
@pytest.mark.parametrize("frequency", [1, 3, 1000])
def test_a_delta_channel_is_rebuilt_after_forks(saver, frequency):
    class Delta(MessagesState):
        log: Annotated[list, DeltaChannel(whole_log, snapshot_frequency=frequency)]

    def act(state):
        number = draw()
        return {"messages": step_messages(number), "log": [number]}

    run = played(stepping(Delta, act), 50, EveryStep(), log=[])
    for trajectory, output in zip(run.population.trajectories, run.outputs, strict=True):
        assert output["log"] == [int(step.action) for step in trajectory.steps]
        assert len(output["log"]) == 10
    assert max(saver.last.copied) <= 2 * frequency + 1


@pytest.mark.thorough
@pytest.mark.parametrize("checkpointer", [True, None], ids=["remembers", "forgets"])
def test_a_subgraph_with_memory_sees_only_its_particles_past(checkpointer):
    class Inner(TypedDict):
        numbers: Annotated[list, operator.add]

    inner_builder = StateGraph(Inner)
    inner_builder.add_node("remember", lambda state: {"numbers": []})
    inner_builder.add_edge(START, "remember")
    inner = inner_builder.compile(checkpointer=checkpointer)

    class Outer(MessagesState):
        remembered: list

    async def act(state):
        number = draw()
        remembered = (await inner.ainvoke({"numbers": [number]}))["numbers"]
        return {"messages": step_messages(number), "remembered": remembered}

    run = played(stepping(Outer, act), 50, EveryStep(), remembered=[])
    for trajectory, output in zip(run.population.trajectories, run.outputs, strict=True):
        numbers = [int(step.action) for step in trajectory.steps]
        assert output["remembered"] == (numbers if checkpointer else numbers[-1:])


def test_sends_pending_at_a_fork_get_their_own_arguments():
    class Bags(MessagesState):
        bags: Annotated[list, operator.add]

    def plan(state):
        return {"messages": step_messages(draw())}

    def spread(state):
        return [Send("fill", {"bag": [len(state["messages"])]}) for _ in range(2)]

    def fill(state):
        state["bag"].append(draw())
        return {"bags": [state["bag"]]}

    builder = StateGraph(Bags)
    builder.add_node("tools", plan)
    builder.add_node("fill", fill)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", spread, ["fill"])
    builder.add_conditional_edges("fill", lambda state: END if len(state["messages"]) > 8 else "tools", ["tools", END])
    run = played(builder.compile(), 50, EveryStep(), bags=[])
    for output in run.outputs:
        assert [bag[0] for bag in output["bags"]] == [3, 3, 5, 5, 7, 7, 9, 9]
        assert all(len(bag) == 2 for bag in output["bags"])


def test_the_offspring_of_a_finished_particle_has_its_own_containers():
    class Bag(MessagesState):
        bag: list

    def act(state):
        return {"messages": step_messages(draw()), "bag": [*state["bag"], draw()]}

    builder = StateGraph(Bag)
    builder.add_node("tools", act)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges(
        "tools", lambda state: END if state["bag"][0] % 2 or len(state["bag"]) > 2 else "tools"
    )
    run = amc(
        builder.compile(),
        Prefers(0),
        n_particles=6,
        resample=EveryStep(),
        settings=AmcSettings(finished="keep"),
        seed=4,
        beta=1.0,
        select="weight",
        stateless_tools=True,
    ).run(start() | {"bag": []})
    assert any(point.ancestors is not None for point in run.history)
    bags = [output["bag"] for output in run.outputs]
    assert len({id(bag) for bag in bags}) == len(bags)


@variants("limited", [ToolCallLimitMiddleware, ModelCallLimitMiddleware])
def test_run_limits_of_middlewares_count_the_steps_before_a_fork(limited):
    calls = itertools.count()

    @tool
    @effect("read")
    def search(query: str) -> str:
        """Search."""
        return "found"

    def respond(messages):
        number = next(calls)
        call = {"name": "search", "args": {"query": str(number)}, "id": f"c{number}"}
        return AIMessage(f"search {number}", tool_calls=[call])

    middleware = [limited(run_limit=2, exit_behavior="end")]
    agent = create_agent(ScriptedChatModel(respond=respond), [search], middleware=middleware)
    run = amc(agent, by_place, n_particles=3, beta=0.05, resample=EveryStep(), horizon=9, seed=1).run(start())
    assert any(point.ancestors is not None for point in run.history)
    assert len(run.best_output["messages"]) == len(agent.invoke(start())["messages"])


def test_an_untracked_object_that_forks_lose_is_noted():
    class State(MessagesState):
        session: Annotated[Any, UntrackedValue]

    @effect("read")
    def work(state):
        if len(state["messages"]) == 1:
            return {"messages": [AIMessage("opened")], "session": object()}
        return {"messages": [AIMessage("has it" if state.get("session") is not None else "lost it")]}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: "work" if len(state["messages"]) < 4 else END)
    run = amc(builder.compile(), by_place, n_particles=3, step_after="work", beta=0.05, resample=EveryStep(),
              seed=1).run(start())  # fmt: skip
    assert run.best_output["messages"][-1].text == "lost it"
    assert any("`session` (UntrackedValue)" in note for note in run.notes)


def by_place(trajectories):
    """Values that differ, so that a weighing forks the last particle."""
    return [0.1 + 0.2 * place for place, _ in enumerate(trajectories)]
