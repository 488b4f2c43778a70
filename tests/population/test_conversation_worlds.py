"""In a conversation, a turn starts from the world of the previous turn's winner."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs import DirectoryFork
from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.features.conversation_world import _release_with
from amc_agents.testing import ScriptedChatModel
from tests.population.worlds import ReturnSoFar, number_agent, start, sum_world
from tests.variants import variants

THREAD = {"configurable": {"thread_id": "t"}}


@tool
@effect("world")
def append(word: str) -> str:
    """Append a word to notes.txt."""
    folder: Any = current_environment(object)
    with (folder.path / "notes.txt").open("a") as file:
        file.write(f"{word}\n")
    return "written"


def respond(messages):
    asked = max(i for i, message in enumerate(messages) if isinstance(message, HumanMessage))
    if sum(isinstance(message, ToolMessage) for message in messages[asked:]) == 2:
        return "done"
    word = "ab"[int(particle_rng().integers(2))]
    return AIMessage("", tool_calls=[{"name": "append", "args": {"word": word}, "id": f"{len(messages)}"}])


def prefer_a(trajectories):
    return [sum('"a"' in step.action for step in trajectory.steps) for trajectory in trajectories]


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "notes.txt").write_text("start\n")
    return folder


def make_graph(checkpointer, make):
    return amc(
        create_agent(ScriptedChatModel(respond=respond), [append]),
        prefer_a,
        environment=make,
        n_particles=4,
        resample=AtSteps(1),
        beta=0.5,
        seed=0,
        checkpointer=checkpointer,
    )


@pytest.fixture
def build(original, workspaces):
    return lambda checkpointer=None, make=None: make_graph(
        checkpointer, make or (lambda state: DirectoryFork(original, workspace=workspaces))
    )


def turn(graph, config=THREAD, **options):
    """The winner's file after a turn."""
    with graph.run({"messages": [HumanMessage("go on")]}, config, **options) as run:
        return (run.best_world.path / "notes.txt").read_text().split()


def snapshots(workspaces):
    return sorted(path.name for path in workspaces.glob("amc-snapshot-*"))


@variants("durability", ["async", "exit"])
def test_a_turn_starts_from_the_winners_world_of_the_turn_before(build, original, durability):
    graph = build(InMemorySaver())
    first, second, third = (turn(graph, durability=durability) for _ in range(3))
    assert len(first) == 3
    assert second[:3] == first
    assert third[:5] == second
    assert len(third) == 7
    assert (original / "notes.txt").read_text() == "start\n"


@pytest.mark.thorough  # quick: test_snapshots_are_deleted_with_a_checkpointer_in_memory
def test_snapshots_of_older_turns_are_deleted(build, workspaces):
    graph = build(InMemorySaver())
    counts = []
    for _ in range(4):
        turn(graph)
        counts.append(len(snapshots(workspaces)))
    assert counts == [1, 2, 2, 2]


def test_invoke_goes_on_and_the_private_channel_is_not_shown(build, workspaces):
    graph = build(InMemorySaver())
    output = graph.invoke(start(), THREAD)
    assert set(output) == {"messages"}
    updates = [update for update in graph.stream(start(), THREAD, stream_mode="updates") if "finalize" in update]
    assert set(updates[0]["finalize"]) == {"messages"}
    assert "amc_world" not in graph.get_state(THREAD).values
    assert len(turn(graph)) == 7
    assert list(workspaces.glob("amc-worlds-*")) == []


@pytest.mark.thorough
def test_threads_of_a_checkpointer_in_memory_leave_nothing_after_their_process(workspaces, original):
    script = f"""
        from pathlib import Path
        from langgraph.checkpoint.memory import InMemorySaver
        from amc_agents.envs import DirectoryFork
        from tests.population.test_conversation_worlds import make_graph, snapshots, start

        graph = make_graph(
            InMemorySaver(), lambda state: DirectoryFork({str(original)!r}, workspace={str(workspaces)!r})
        )
        for number in (1, 2, 2):
            graph.invoke(start(), {{"configurable": {{"thread_id": str(number)}}}})
        print(len(snapshots(Path({str(workspaces)!r}))))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "3\n", done.stderr
    assert list(workspaces.iterdir()) == [], done.stderr


def test_snapshots_are_deleted_with_a_checkpointer_in_memory():
    released, wanted = [], ["a", "b", "c"]

    class World:
        async def release(self, snapshot):
            released.append(snapshot)

    saver = InMemorySaver()
    _release_with(saver, "1", World(), ["older", None])
    _release_with(saver, "1", World(), ["a", None])
    _release_with(saver, "2", World(), ["b", "c"])
    del saver
    gc.collect()
    deadline = time.monotonic() + 30
    while released != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert released == wanted


@pytest.mark.thorough  # quick: test_invoke_goes_on_and_the_private_channel_is_not_shown
async def test_the_same_async(build):
    graph = build(InMemorySaver())
    await graph.ainvoke(start(), THREAD)
    async with await graph.arun(start(), THREAD) as run:
        assert len((run.best_world.path / "notes.txt").read_text().split()) == 5


@pytest.mark.thorough  # a process; quick: test_invoke_goes_on_and_the_private_channel_is_not_shown
def test_another_process_goes_on(build, tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        first = turn(build(saver))
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        assert turn(build(saver))[:3] == first


@pytest.mark.thorough  # quick: test_a_turn_starts_from_the_winners_world_...
def test_what_was_applied_between_the_turns_is_no_change_of_the_next(build, original):
    graph = build(InMemorySaver())
    with graph.run(start(), THREAD) as run:
        run.best_world.apply()
    with graph.run(start(), THREAD) as run:
        assert len(run.best_world.diff().split("+")) == 3 + 4  # The header has three.
        run.best_world.apply()
    assert len((original / "notes.txt").read_text().split()) == 5


@variants("config", [None, {"configurable": {"thread_id": "other"}}])
def test_only_turns_of_the_same_thread_go_on(build, config, workspaces):
    graph = build(None if config is None else InMemorySaver())
    turn(graph, None if config is None else THREAD, durability=None if config is None else "exit")
    assert len(turn(graph, config, durability=None if config is None else "exit")) == 3
    assert len(snapshots(workspaces)) == (0 if config is None else 2)


@pytest.mark.thorough  # quick: test_only_turns_of_the_same_thread_go_on
def test_a_call_may_ask_for_a_new_world(build):
    graph = build(InMemorySaver())
    turn(graph)
    fresh = {"configurable": {**THREAD["configurable"], "amc_new_world": True}}
    assert len(turn(graph, fresh)) == 3
    assert len(turn(graph)) == 5
    with pytest.raises(ConfigurationError, match="amc_new_world must be True or False, got 'yes'"):
        turn(graph, {"configurable": {"thread_id": "t", "amc_new_world": "yes"}})


def test_a_lost_snapshot_is_an_error_that_says_how_to_go_on(build, workspaces):
    graph = build(InMemorySaver())
    turn(graph)
    for name in snapshots(workspaces):
        shutil.rmtree(workspaces / name)
    with pytest.raises(WorldError, match=r"previous turn cannot be restored: the snapshot .*amc_new_world.: True"):
        turn(graph)
    assert list(workspaces.glob("amc-worlds-*")) == []


@pytest.mark.thorough  # quick: test_a_turn_starts_from_the_winners_world_of_the_turn_before
def test_a_turn_can_be_repeated_from_the_checkpoint_before_it(build):
    graph = build(InMemorySaver())
    first = turn(graph)
    before = graph.get_state(THREAD).config
    second = turn(graph)
    assert turn(graph, before) == second
    assert second[:3] == first


@pytest.mark.thorough  # quick: test_a_world_that_cannot_be_saved_is_a_note
def test_worlds_without_snapshots_start_anew_and_a_note_says_so(build, original, workspaces):
    class Plain:
        def __init__(self, inner=None):
            self.inner = inner or DirectoryFork(original, workspace=workspaces)
            self.path = self.inner.path

        async def fork(self, seed):
            return Plain(await self.inner.fork(seed))

        async def close(self):
            await self.inner.close()

    graph = build(InMemorySaver(), lambda state: Plain())
    with graph.run(start(), THREAD) as run:
        assert "the next turn of the conversation starts from a new world: Plain has no snapshot" in " ".join(run.notes)
    assert len(turn(graph)) == 3


def test_a_world_that_cannot_be_saved_is_a_note(build, original, workspaces):
    class Fails(DirectoryFork):
        async def snapshot(self):
            raise OSError("the disk is full")

        async def fork(self, seed):
            twin = await super().fork(seed)
            twin.__class__ = Fails
            return twin

    graph = build(InMemorySaver(), lambda state: Fails(original, workspace=workspaces))
    with graph.run(start(), THREAD) as run:
        assert any("could not be saved (OSError: the disk is full)" in note for note in run.notes)
        assert (run.best_world.path / "notes.txt").read_text() != "start\n"
    assert len(turn(graph)) == 3


def test_worlds_with_reset_start_their_task_anew_without_a_note():
    graph = amc(
        number_agent(), ReturnSoFar(), environment=sum_world, n_particles=2, checkpointer=InMemorySaver(), seed=0
    )
    for _ in range(2):
        with graph.run(start(), THREAD) as run:
            assert len(run.best_world.taken) == 4
            assert not any("conversation" in note for note in run.notes)


@pytest.mark.thorough  # quick: test_only_turns_of_the_same_thread_go_on
def test_a_node_of_another_graph_starts_anew(build, workspaces):
    outer = (StateGraph(MessagesState).add_node("amc", build()).add_edge(START, "amc").add_edge("amc", END)).compile(
        checkpointer=InMemorySaver()
    )
    for _ in range(2):
        outer.invoke(start(), THREAD)
    assert snapshots(workspaces) == []
