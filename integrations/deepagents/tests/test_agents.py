from __future__ import annotations

import asyncio
import subprocess
from datetime import timedelta

import pytest

pytest.importorskip("deepagents")

from amc_agents_deepagents import ARTIFACTS, TOOLS, ForkingBackend, ForkingShellBackend, RecordDiff
from deepagents import FilesystemPermission, create_deep_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents import AtSteps, amc
from amc_agents.envs import DirectoryFork, remove_snapshots
from amc_agents.errors import AgentContractError
from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.world import close_left
from amc_agents.testing import ScriptedChatModel

QUESTION = {"messages": [("user", "Write.")]}
SUBTASK = "Write for me."


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "notes.txt").write_text("start\n")
    (folder / "link.txt").symlink_to("notes.txt")
    return folder


@pytest.fixture
def search(original, tmp_path):
    (tmp_path / "workspaces").mkdir()

    def build(respond, backend=None, *, middleware=(), subagents=(), permissions=(), **settings):
        agent = create_deep_agent(
            model=ScriptedChatModel(respond=respond),
            backend=backend or ForkingBackend(),
            middleware=middleware,
            subagents=subagents,
            permissions=list(permissions),
        )
        defaults = {
            "tools": TOOLS,
            "critic": prefer_a,
            "n_particles": 8,
            "resample": AtSteps(2),
            "beta": 0.5,
            "seed": 0,
        }
        return amc(
            agent,
            environment=lambda state: DirectoryFork(original, ignore=ARTIFACTS, workspace=tmp_path / "workspaces"),
            **{"tools": TOOLS, **defaults, **settings},
        )

    yield build
    assert (original / "notes.txt").read_text() == "start\n", "the original stays untouched"
    close_left()  # The winners' worlds of runs that a test did not close.
    assert {path.name for path in original.iterdir()} == {"link.txt", "notes.txt"}
    assert list((tmp_path / "workspaces").iterdir()) == []


def prefer_a(trajectories):
    return [sum("+a" in step.action for step in path.steps) for path in trajectories]


def call(tool, **args):
    return AIMessage("", tool_calls=[{"name": tool, "args": args, "id": f"call-{particle_rng().integers(2**62)}"}])


def steps_of(messages):
    return sum(isinstance(message, ToolMessage) for message in messages)


def mark():
    """A random letter, which the critic reads, and a number that no two draws share."""
    return f"+{'ab'[int(particle_rng().integers(2))]}{particle_rng().integers(2**62)}"


def observations(path):
    return [step.observation for step in path.steps]


def write_four_letters(messages):
    """Add a random line to the same file four times, then read it."""
    match steps_of(messages):
        case 0 | 1 | 2 | 3:
            return call("edit_file", file_path="/notes.txt", old_string="start", new_string=f"start\n{mark()}")
        case 4:
            return call("read_file", file_path="/notes.txt")
        case _:
            return "done"


def written(path):
    """The lines that the trajectory wrote, in the order in which they stand in the file."""
    edits = [step.action.split("start\\n")[1] for step in path.steps if "edit_file" in step.action]
    return [edit.split('"')[0] for edit in reversed(edits)]


def test_particles_see_their_own_files_and_a_fork_keeps_the_past(search):
    run = search(write_four_letters).run(QUESTION)
    paths = run.population.trajectories
    for path in paths:
        lines = [line.split()[-1] for line in observations(path)[4].splitlines()]
        assert lines[-5:] == ["start", *written(path)]
    assert len({written(path)[0] for path in paths}) == len(paths), "the last edits are the particles' own"
    assert 1 < len({written(path)[2] for path in paths}) < len(paths), "some share the past before the last resampling"


def test_the_caller_gets_the_changes_of_the_winner(search, original, tmp_path):
    graph = search(write_four_letters, middleware=[RecordDiff()])
    run = graph.run(QUESTION)
    assert len({output["diff"] for output in run.outputs}) > 1
    winner = written(run.population.trajectories[run.best_index])
    assert run.best_output["diff"].startswith("--- a/notes.txt\n+++ b/notes.txt\n")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "notes.txt").write_text((original / "notes.txt").read_text())
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    subprocess.run(["git", "apply"], cwd=copy, input=run.best_output["diff"], text=True, check=True)
    assert (copy / "notes.txt").read_text().split() == ["start", *winner]
    assert graph.invoke(QUESTION)["diff"] == run.best_output["diff"]


@pytest.mark.parametrize("horizon", [50, 2])
def test_the_callers_world_is_the_winners_folder(search, original, tmp_path, horizon):
    with search(write_four_letters, horizon=horizon).run(QUESTION) as run:
        lines = ["start", *written(run.best)]
        assert len(lines) == min(horizon, 4) + 1
        assert (run.best_world.path / "notes.txt").read_text().split() == lines
        assert [change.path for change in run.best_world.apply()] == ["notes.txt"]
    assert (original / "notes.txt").read_text().split() == lines
    (original / "notes.txt").write_text("start\n")


def test_the_next_turn_starts_from_the_winners_files(search, tmp_path):
    thread = {"configurable": {"thread_id": "t"}}
    graph = search(write_four_letters, checkpointer=InMemorySaver())
    with graph.run(QUESTION, thread) as run:
        first = (run.best_world.path / "notes.txt").read_text()
    graph.invoke(QUESTION, thread)  # The script's answers are used up, so this turn and the next write nothing.
    with graph.run(QUESTION, thread) as run:
        assert (run.best_world.path / "notes.txt").read_text() == first != "start\n"
    remove_snapshots(tmp_path / "workspaces", older_than=timedelta())


def test_added_and_deleted_files_are_in_the_diff(search, tmp_path):
    def respond(messages):
        match steps_of(messages):
            case 0:
                return call("write_file", file_path="/src/new.py", content="x = 1\n")
            case 1:
                return call("delete", file_path="/notes.txt")
            case _:
                return "done"

    diff = search(respond, middleware=[RecordDiff()], n_particles=2).invoke(QUESTION)["diff"]
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "notes.txt").write_text("start\n")
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    subprocess.run(["git", "apply"], cwd=copy, input=diff, text=True, check=True)
    assert (copy / "src" / "new.py").read_text() == "x = 1\n"
    assert "@@ -1 +0,0 @@\n-start\n" in diff


def test_an_unfinished_particle_has_no_diff(search):
    run = search(write_four_letters, middleware=[RecordDiff()], horizon=2).run(QUESTION)
    assert all("diff" not in output for output in run.outputs)


def test_commands_run_in_the_particles_folder(search):
    def respond(messages):
        if steps_of(messages) < 4:
            return call("execute", command=f"echo {mark()} >> notes.txt; pwd; cat notes.txt")
        return "done"

    run = search(respond, ForkingShellBackend()).run(QUESTION)
    for path in run.population.trajectories:
        commands = [step.action.split("echo ")[1].split()[0] for step in path.steps[:4]]
        assert observations(path)[3].split("\n\n")[0].splitlines()[1:] == ["start", *commands]
    assert len({observations(path)[3].split()[0] for path in run.population.trajectories}) == 8


WRITER = {"name": "writer", "description": "Writes.", "system_prompt": "Write."}


@pytest.mark.parametrize("name", ["general-purpose", "writer"])
def test_a_sub_agent_works_in_the_folder_of_its_particle(search, name):
    def respond(messages):
        if any(isinstance(message, HumanMessage) and message.text == SUBTASK for message in messages):
            match steps_of(messages):
                case 0:
                    return call("read_file", file_path="/mine.txt")
                case 1:
                    text = messages[-1].text.split()[-1]
                    return call("write_file", file_path="/by-sub-agent.txt", content=f"{text} {mark()}\n")
                case _:
                    return "done"
        match steps_of(messages):
            case 0:
                return call("write_file", file_path="/mine.txt", content=f"{mark()}\n")
            case 1:
                return call("task", description=SUBTASK, subagent_type=name)
            case 2:
                return call("read_file", file_path="/by-sub-agent.txt")
            case 3:
                return call("glob", pattern="[bm]*.txt")
            case _:
                return "done"

    # In synchronous calls, deepagents refuses a fifth `glob` at the same time.
    run = asyncio.run(search(respond, subagents=[WRITER]).arun(QUESTION))
    seen = set()
    for path in run.population.trajectories:
        mine = path.steps[0].action.split('"content": "')[1].split("\\n")[0]
        assert observations(path)[2].split()[-2] == mine, "the sub-agent reads its particle's file"
        assert observations(path)[3] == "['/by-sub-agent.txt', '/mine.txt']"
        seen.add(observations(path)[2])
    assert len(seen) > 1
    assert run.usage["policy"].calls >= 8 * (5 + 3), "the sub-agents' model calls are counted too"


def test_permissions_of_the_agent_hold_through_links(search):
    def respond(messages):
        match steps_of(messages):
            case 0:
                return call("read_file", file_path="/notes.txt")
            case 1:
                return call("read_file", file_path="/link.txt")
            case _:
                return "done"

    denied = FilesystemPermission(operations=["read"], paths=["/notes.txt"], mode="deny")
    run = search(respond, permissions=[denied], n_particles=2).run(QUESTION)
    for path in run.population.trajectories:
        assert all("permission denied" in observation for observation in observations(path)[:2])


def test_a_path_out_of_the_folder_is_an_error_that_the_model_reads(search, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")

    def respond(messages):
        match steps_of(messages):
            case 0:
                return call("read_file", file_path="/../../secret.txt")
            case 1:
                return call("write_file", file_path="../../secret.txt", content="x")
            case _:
                return "done"

    run = search(respond, n_particles=2).run(QUESTION)
    for path in run.population.trajectories:
        assert all("traversal" in observation for observation in observations(path)[:2])
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_long_tool_results_can_be_read_and_are_no_change(search):
    def respond(messages):
        match steps_of(messages):
            case 0:
                return call("execute", command="yes line | head -30000")
            case 1:
                return call("ls", path="/large_tool_results")
            case _:
                return "done"

    graph = search(respond, ForkingShellBackend(max_output_bytes=1_000_000), middleware=[RecordDiff()], n_particles=2)
    run = graph.run(QUESTION)
    assert "/large_tool_results/" in observations(run.population.trajectories[0])[1]
    assert run.best_output["diff"] == ""


@pytest.mark.parametrize("missing", sorted(TOOLS))
def test_tools_declares_the_tools_of_a_deep_agent_and_no_others(search, missing):
    with pytest.raises(AgentContractError, match=missing):
        search(write_four_letters, tools={name: kind for name, kind in TOOLS.items() if name != missing})
    search(write_four_letters)
