from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs.real import Conflict, DirectoryFork, WorldBundle, workspace
from amc_agents.envs.real.changes import FileChange
from amc_agents.envs.real.workspace import PREFIX, Workspace, remove, remove_orphans
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, StorageError
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel, check_environment
from amc_agents.types import Task, TimeStep


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one\ntwo\n")
    (folder / "b.txt").write_text("b\n")
    (folder / "data.bin").write_bytes(b"\xff\x00")
    (folder / "link").symlink_to("b.txt")
    return folder


@pytest.fixture
def world(original, workspaces):
    return DirectoryFork(original, ignore=["*.pyc"], workspace=workspaces)


def tree(folder: Path) -> dict[str, bytes | str]:
    return {
        path.relative_to(folder).as_posix(): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


def change(folder: Path) -> None:
    (folder / "src" / "a.py").write_text("one\n2\n")
    (folder / "b.txt").unlink()
    (folder / "new").mkdir()
    (folder / "new" / "c.txt").write_text("no newline")
    (folder / "new" / "c.pyc").write_text("ignored")


async def test_a_fork_has_the_same_files_and_its_own_future(world, original):
    before = tree(original)
    (world.path / "b.txt").write_text("parent\n")
    twin = await world.fork(1)
    (twin.path / "b.txt").write_text("twin\n")
    (world.path / "src" / "a.py").unlink()
    assert (twin.path / "src" / "a.py").read_text() == "one\ntwo\n"
    assert (world.path / "b.txt").read_text() == "parent\n"
    assert os.readlink(twin.path / "link") == "b.txt"
    assert tree(original) == before


async def test_changes_and_diff_name_what_the_particle_did(world):
    change(world.path)
    (world.path / "data.bin").write_bytes(b"\xff\x01\x02")
    assert world.changes() == [
        FileChange("b.txt", "deleted"),
        FileChange("data.bin", "modified"),
        FileChange("new/c.txt", "added"),
        FileChange("src/a.py", "modified"),
    ]
    diff = world.diff()
    assert "--- a/src/a.py\n+++ b/src/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in diff
    assert "Binary file data.bin differs\n" in diff
    assert diff.count("\\ No newline at end of file\n") == 1


async def test_git_applies_the_diff(world, original, tmp_path):
    change(world.path)
    (tmp_path / "patch").write_text(world.diff())
    command = ["git", "apply", "--unsafe-paths", f"--directory={original}", str(tmp_path / "patch")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "Invalid path" in done.stderr:
        pytest.skip("this git does not apply patches outside of a repository")
    assert (original / "src" / "a.py").read_text() == "one\n2\n", done.stderr


async def test_apply_writes_the_changes_to_the_original(world, original):
    change(world.path)
    (world.path / "new" / "c.pyc").unlink()
    assert len(world.apply()) == 3
    assert tree(original) == tree(world.path)
    assert not (original / ".amc-apply").exists()


async def test_a_file_may_become_a_folder_and_a_folder_a_file(world, original):
    (world.path / "b.txt").unlink()
    (world.path / "b.txt").mkdir()
    (world.path / "b.txt" / "inner").write_text("x")
    (world.path / "src" / "a.py").unlink()
    (world.path / "src").rmdir()
    (world.path / "src").write_text("now a file")
    world.apply()
    assert tree(original) == tree(world.path)


async def test_apply_refuses_what_has_changed_in_the_original(world, original):
    change(world.path)
    (original / "src" / "a.py").write_text("meanwhile\n")
    (original / "new").mkdir()
    (original / "new" / "c.txt").write_text("meanwhile")
    before = tree(original)
    with pytest.raises(Conflict, match=r"in new/c.txt, src/a.py\. Nothing was written") as caught:
        world.apply()
    assert caught.value.places == ("new/c.txt", "src/a.py")
    assert tree(original) == before


async def test_a_change_elsewhere_in_the_original_is_no_conflict(world, original):
    (world.path / "b.txt").write_text("mine\n")
    (original / "src" / "a.py").write_text("theirs\n")
    world.apply()
    assert ((original / "b.txt").read_text(), (original / "src" / "a.py").read_text()) == ("mine\n", "theirs\n")


# Two files are moved away, then two are moved in.
@pytest.mark.parametrize("fails_at", range(1, 5))
async def test_an_apply_that_fails_changes_nothing(world, original, monkeypatch, fails_at):
    change(world.path)
    before, calls = tree(original), []
    replace = os.replace

    def failing(source, target):
        calls.append(target)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("amc_agents.envs.real.folders.os.replace", failing)
    with pytest.raises(StorageError, match="disk is full"):
        world.apply()
    monkeypatch.undo()
    assert tree(original) == before


async def test_the_last_world_removes_the_workspace(world, workspaces):
    twin = await world.fork(1)
    path = world.path
    await world.close()
    await world.close()
    assert not path.exists()
    assert twin.changes() == []
    await twin.close()
    assert list(workspaces.iterdir()) == []
    with pytest.raises(EnvironmentStateError, match="closed"):
        twin.path  # noqa: B018


async def test_a_folder_that_cannot_be_copied_names_the_file(world, workspaces):
    os.mkfifo(world.path / "pipe")
    with pytest.raises(ForkError, match=r"pipe.* ignore="):
        await world.fork(1)
    assert len([path for path in next(workspaces.iterdir()).iterdir() if path.is_dir()]) == 2


def test_only_a_folder_is_accepted(tmp_path):
    with pytest.raises(ConfigurationError, match=r"expects a folder, got '.*nowhere'"):
        DirectoryFork(tmp_path / "nowhere")


def test_read_only_files_are_removed_too(original, workspaces):
    world = DirectoryFork(original, workspace=workspaces)
    (world.path / "src" / "a.py").chmod(0o400)
    (world.path / "src").chmod(0o500)
    asyncio.run(world.close())
    assert list(workspaces.iterdir()) == []


def test_folders_of_a_killed_process_are_removed_by_the_next(original, workspaces):
    code = f"""
        import os, signal
        from amc_agents.envs.real import DirectoryFork
        world = DirectoryFork({str(original)!r}, workspace={str(workspaces)!r})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    (orphan,) = workspaces.glob(f"{PREFIX}*")
    world = DirectoryFork(original, workspace=workspaces)
    assert not orphan.exists()
    assert world.path.exists()
    assert remove_orphans(workspaces) == [], "a workspace in use is no orphan"


@pytest.mark.parametrize("locked", [True, False])
def test_a_workspace_that_is_swept_while_it_is_created_is_created_again(workspaces, monkeypatch, locked):
    swept = []

    class SweptFirst(FileLock):
        def acquire(self, *args, **settings):
            if swept:
                return super().acquire(*args, **settings)
            swept.append(Path(self.lock_file).parent)
            result = super().acquire(*args, **settings) if locked else None
            remove(swept[0])
            if not locked:
                raise FileNotFoundError(self.lock_file)
            return result

    monkeypatch.setattr(workspace, "FileLock", SweptFirst)
    made = Workspace(workspaces)
    assert made.path.exists()
    assert made.path not in swept
    assert remove_orphans(workspaces) == []


def test_an_orphan_is_removed_while_it_is_locked(workspaces, monkeypatch):
    orphan = workspaces / f"{PREFIX}dead"
    orphan.mkdir()
    (orphan / "in-use.lock").touch()
    locked = []

    def removing(path):
        with pytest.raises(Timeout) if not locked else nullcontext():
            FileLock(path / "in-use.lock").acquire(timeout=0)
        locked.append(path)
        remove(path)

    monkeypatch.setattr(workspace, "remove", removing)
    assert remove_orphans(workspaces) == [orphan]
    assert not orphan.exists()


class Desk:
    """A text world over a folder: `append WORD` writes a line, `finish` ends the episode."""

    def __init__(self, original, workspace, files=None, done=False):
        self.original, self.workspace = original, workspace
        self.files, self.done = files, done

    async def reset(self, task):
        await self.close()
        self.files, self.done = DirectoryFork(self.original, workspace=self.workspace), False
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        if self.files is None or self.done:
            raise EnvironmentStateError("Desk.step was called before reset or after the end")
        if action == "finish":
            self.done = True
            return TimeStep.termination(str(tree(self.files.path)), 1.0)
        if action.startswith("append "):
            with (self.files.path / "b.txt").open("a") as file:
                file.write(action[7:] + "\n")
        return TimeStep.transition((self.files.path / "b.txt").read_text())

    async def fork(self, seed):
        return Desk(self.original, self.workspace, await self.files.fork(seed), self.done)

    async def close(self):
        if self.files is not None:
            await self.files.close()
            self.files = None


async def test_it_keeps_the_contract_of_environments(original, workspaces):
    actions = ["append x", "append y", "finish"]
    await check_environment(lambda: Desk(original, workspaces), Task("desk", "Write."), actions)


@tool
@effect("world")
def append(word: str) -> str:
    """Append a word to notes.txt."""
    with (current_environment(DirectoryFork).path / "notes.txt").open("a") as file:
        file.write(f"{word}\n")
    return (current_environment(DirectoryFork).path / "notes.txt").read_text()


def respond(messages):
    if sum(isinstance(message, ToolMessage) for message in messages) == 4:
        return "done"
    word = "ab"[int(particle_rng().integers(2))]
    return AIMessage("", tool_calls=[{"name": "append", "args": {"word": word}, "id": f"{len(messages)}"}])


def test_particles_write_their_own_files(original, workspaces):
    agent = create_agent(ScriptedChatModel(respond=respond), [append])
    graph = amc(
        agent,
        critic=lambda trajectories: [
            sum("'a'" in step.action or '"a"' in step.action for step in path.steps) for path in trajectories
        ],
        environment=lambda state: DirectoryFork(original, workspace=workspaces),
        n_particles=8,
        resample=AtSteps(2),
        beta=0.5,
        seed=0,
    )
    before = tree(original)
    run = graph.run({"messages": [("user", "Write.")]})
    winners = [step.observation for step in run.best.steps if "word" in step.action][-1]
    assert (run.best_world.path / "notes.txt").read_text() == winners
    run.close()
    assert run.notes == (run.best_world.run_note,)
    for path in run.population.trajectories:
        words = [step.action.split('"word": "')[1][0] for step in path.steps if "word" in step.action]
        last = [step for step in path.steps if "word" in step.action][-1]
        assert last.observation.split() == words, "each particle sees what it has written, and nothing else"
    assert tree(original) == before
    assert list(workspaces.iterdir()) == []


async def test_reflinks_are_tried_first_and_the_note_says_what_was_used(original, workspaces, monkeypatch):
    calls = []

    def clone(target, request, source):
        calls.append(request)
        os.write(target, os.pread(source, 1 << 20, 0))

    monkeypatch.setattr("fcntl.ioctl", clone)
    world = DirectoryFork(original, workspace=workspaces)
    assert (world.method, set(calls)) == ("reflink", {0x40049409})
    assert "share blocks" in WorldBundle(files=world).run_note
    assert tree(world.path) == tree(original)

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.ioctl", refuse)
    plain = DirectoryFork(original, workspace=workspaces)
    assert (plain.method, tree(plain.path)) == ("copy", tree(original))
    for each in (world, plain):
        await each.close()
