"""The worlds of a restored run: from a snapshot, or by replay that is checked; otherwise there are no points."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents.envs.replay import NoFork, ReplayFork
from amc_agents.errors import PopulationError, ReplayDivergence
from amc_agents.population.features.durable.points import points_thread
from amc_agents.runtime.effects import effect
from amc_agents.runtime.world import current_environment
from amc_agents.smc import EveryStep, Never
from amc_agents.types import Task, TimeStep
from tests.population.durable.scenario import CONFIG, LENGTH, N, Scenario, facts
from tests.population.worlds import TASK, SumWorld, start
from tests.variants import variants


def broken_and_resumed(scenario, call=3):
    scenario.fails_at_critic_call = call
    with pytest.raises(Exception, match="the machine dies"):
        scenario.graph.run(start(), CONFIG)
    return scenario.graph.run(None, CONFIG)


class Dice(SumWorld):
    """A stochastic world: each answer adds a throw, and forks have dice of their own."""

    def __init__(self, length=LENGTH):
        super().__init__(length)
        self.rng = np.random.default_rng(5)

    async def step(self, action):
        answer = await super().step(action)
        return type(answer).transition(f"{answer.observation}, thrown {self.rng.integers(6)}", answer.reward)

    async def fork(self, seed):
        copy = await super().fork(seed)
        copy.rng = np.random.default_rng(seed)
        return copy


@pytest.mark.thorough  # quick: test_wrapped_worlds_are_replayed
def test_a_stochastic_world_is_replayed_with_its_forks():
    settings = {"environment": lambda state: (Dice(), TASK), "resample": EveryStep(), "horizon": LENGTH}
    with Scenario(**settings).graph.run(start()) as plain:
        assert len({output["messages"][-1].text for output in plain.outputs}) > 1
    with broken_and_resumed(Scenario(InMemorySaver(), **settings)) as resumed:
        assert facts(resumed) == facts(plain)
    assert Dice.open == 0


def test_a_world_that_answers_differently_is_an_error_that_names_the_step():
    class Moody(SumWorld):
        mood = 0

        async def step(self, action):
            answer = await super().step(action)
            if len(self.taken) == 2:
                return TimeStep.transition(f"mood {self.mood}", answer.reward)
            return answer

    def world(state):
        return Moody(LENGTH), TASK

    scenario = Scenario(InMemorySaver(), environment=world, resample=EveryStep())
    scenario.fails_at_critic_call = 4
    with pytest.raises(Exception, match="the machine dies"):
        scenario.graph.run(start(), CONFIG)
    Moody.mood = 1
    with pytest.raises(ReplayDivergence, match=r"diverged at step 2 .*expected 'mood 0', got 'mood 1'"):
        scenario.graph.run(None, CONFIG)
    assert Moody.open == 0


def test_another_task_is_refused():
    tasks = [TASK]
    scenario = Scenario(InMemorySaver(), environment=lambda state: (SumWorld(LENGTH), tasks[0]))
    scenario.fails_at_critic_call = 2
    with pytest.raises(Exception, match="the machine dies"):
        scenario.graph.run(start(), CONFIG)
    tasks[0] = Task("other", TASK.instruction)
    with pytest.raises(PopulationError, match=r"its task was 'count', and environment= now returns 'other'"):
        scenario.graph.run(None, CONFIG)


@pytest.mark.thorough  # quick: test_a_restorable_world_comes_back_from_its_snapshot
def test_a_payload_that_nothing_can_serialise_is_no_obstacle():
    task = Task("count", TASK.instruction, payload=lambda: "not serialisable")
    settings = {"environment": lambda state: (SumWorld(LENGTH), task)}
    run = broken_and_resumed(Scenario(InMemorySaver(), **settings), 2)
    assert run.best.task is task


@variants("wrap", [lambda: ReplayFork(lambda seed: SumWorld(LENGTH)), lambda: NoFork(SumWorld(LENGTH), "x")])
def test_wrapped_worlds_are_replayed(wrap):
    schedule = Never() if isinstance(wrap(), NoFork) else EveryStep()
    settings = {"environment": lambda state: (wrap(), TASK), "resample": schedule}
    plain = facts(Scenario(**settings).graph.run(start()))
    scenario = Scenario(InMemorySaver(), **settings)
    if schedule == Never():
        assert facts(scenario.graph.run(start(), CONFIG)) == plain
    else:
        assert facts(broken_and_resumed(scenario)) == plain


class Folder:
    """A `Forkable` of texts."""

    open = 0

    def __init__(self, files=()):
        self.files = list(files)
        self.closed = False
        Folder.open += 1

    async def fork(self, seed):
        return type(self)(self.files)

    async def close(self):
        Folder.open -= not self.closed
        self.closed = True


class SavedFolder(Folder):
    """A `Restorable` of texts, on a disk that outlives the process."""

    disk: ClassVar[dict[str, list[str]]] = {}
    made = 0

    async def snapshot(self):
        SavedFolder.made += 1
        self.disk[f"snapshot {SavedFolder.made}"] = list(self.files)
        return {"name": f"snapshot {SavedFolder.made}", "size": b"12"}

    async def restore(self, snapshot):
        assert snapshot["size"] == b"12"
        self.files = list(self.disk[snapshot["name"]])

    async def release(self, snapshot):
        self.disk.pop(snapshot["name"], None)


def writing_agent(scenario):
    """An agent that writes each of its answers into its folder."""

    @effect("world")
    def tools(state):
        folder = current_environment(Folder)
        folder.files.append(scenario().respond(state["messages"]))
        return {"messages": [AIMessage("Action: " + folder.files[-1][-1]), HumanMessage(" | ".join(folder.files))]}

    builder = StateGraph(MessagesState)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) > 2 * LENGTH else "tools")
    return builder.compile()


def folder_scenario(kind, saver=None):
    scenarios: list[Scenario] = []
    agent = writing_agent(lambda: scenarios[0])
    scenarios.append(Scenario(saver, agent, environment=lambda state: kind(), resample=EveryStep()))
    return scenarios[0]


def test_a_restorable_world_comes_back_from_its_snapshot():
    scenario = folder_scenario(SavedFolder, InMemorySaver())
    with folder_scenario(SavedFolder).graph.run(start()) as plain, broken_and_resumed(scenario) as resumed:
        assert facts(resumed) == facts(plain)
        assert resumed.best_world.files == plain.best_world.files
    assert scenario.model_calls == N * (LENGTH + 1), "one step is repeated"
    assert Folder.open == 0


def test_an_answered_run_releases_the_snapshots_of_its_points():
    SavedFolder.disk.clear()
    scenario = folder_scenario(SavedFolder, InMemorySaver())
    scenario.graph.run(start(), CONFIG)
    first = set(SavedFolder.disk)
    assert SavedFolder.made > N
    assert len(first) == 1, "the winner's, from which the next turn starts"
    scenario.graph.run(start(), CONFIG)
    assert len(SavedFolder.disk) == 2
    assert first < set(SavedFolder.disk)


@pytest.mark.thorough  # quick: test_an_answered_run_releases_the_snapshots_of_its_points
def test_a_broken_run_keeps_its_snapshots_until_it_is_answered():
    SavedFolder.disk.clear()
    scenario = folder_scenario(SavedFolder, InMemorySaver())
    scenario.fails_at_critic_call = 3
    with pytest.raises(Exception, match="the machine dies"):
        scenario.graph.run(start(), CONFIG)
    assert len(SavedFolder.disk) >= N
    scenario.graph.run(None, CONFIG)
    assert len(SavedFolder.disk) == 1


@pytest.mark.thorough  # quick: test_a_world_that_cannot_be_saved_is_a_note
def test_a_world_that_cannot_come_back_has_no_points_and_the_run_says_so(caplog):
    saver = InMemorySaver()
    scenario = folder_scenario(Folder, saver)
    run = broken_and_resumed(scenario)
    assert points_thread("t") not in saver.storage or not saver.storage[points_thread("t")][""]
    assert scenario.model_calls == N * (3 + LENGTH), "it restarted from its input"
    assert any("no durable points" in note and "Folder has neither snapshot" in note for note in run.notes)
    assert "it had no durable point" in caplog.text
