"""The coding world: repair a small repository by reading and editing files, and by running its tests."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from amc_agents.envs import DirectoryFork
from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_workspace.bugs import Bug, write_files
from amc_agents_workspace.checking import RunTests, run_tests

_READ = re.compile(r"read (\S+)")
_EDIT = re.compile(r"edit (\S+) (\d{1,6})(?:-(\d{1,6}))?(?:\n(.*))?", re.DOTALL)
_COMMANDS = "There is no such command. Commands: read FILE, edit FILE FIRST-LAST with the new lines below it, test."


class _Refused(Exception):
    """Observation for a command that cannot be executed; internal to this module."""


class CodingWorld:
    """A repository with failing tests, in a folder of its own; a fork copies the folder (`DirectoryFork`).

    The commands are `read FILE`, `edit FILE FIRST-LAST` with the new lines below it, and `test`. When all tests pass,
    `test` gives reward 1 and ends the episode; every other reward is 0. The test files cannot be edited. The world
    never truncates: the caller limits the steps.

    Args:
        run: runs the tests of a folder. `Remembered()`, shared by several worlds, runs them once for equal files.
    """

    def __init__(self, run: RunTests = run_tests) -> None:
        self._run = run
        self._files: DirectoryFork | None = None
        self._done = False

    @property
    def files(self) -> DirectoryFork:
        """The repository: `files.path` is its folder, and `files.diff()` shows what was edited.

        Raises:
            EnvironmentStateError: before `reset` and after `close`.
        """
        if self._files is None:
            raise EnvironmentStateError("CodingWorld has no files before reset or after close: call reset(task) first")
        return self._files

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `Bug` payload."""
        if not isinstance(task.payload, Bug):
            raise EnvironmentStateError(
                f"CodingWorld.reset expected a Task with a Bug payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): create tasks with amc_agents_workspace.generate_bugs"
            )
        await self.close()
        self._files, self._done = await asyncio.to_thread(_written, task.payload), False
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        """Execute a command; the observation of any other text lists the commands."""
        if self._files is None or self._done:
            when = "before reset" if self._files is None else "after the episode's end"
            raise EnvironmentStateError(f"CodingWorld.step was called {when}: call reset(task) first")
        try:
            return await asyncio.to_thread(self._act, action)
        except _Refused as refusal:
            return TimeStep.transition(str(refusal))

    async def fork(self, seed: int) -> CodingWorld:
        """Copy the folder. The seed is unused, since the world is deterministic."""
        twin = CodingWorld(self._run)
        twin._files = None if self._files is None else await self._files.fork(seed)
        twin._done = self._done
        return twin

    async def close(self) -> None:
        """Remove the folder; safe to call twice."""
        files, self._files = self._files, None
        if files is not None:
            await files.close()

    def _act(self, action: str) -> TimeStep:
        if action.strip() == "test":
            return self._test()
        if match := _READ.fullmatch(action.strip()):
            return TimeStep.transition(_numbered(self._lines(match[1]), 1))
        if match := _EDIT.fullmatch(action):
            first = int(match[2])
            return TimeStep.transition(self._edit(match[1], first, int(match[3] or first), match[4]))
        raise _Refused(_COMMANDS)

    def _test(self) -> TimeStep:
        report = self._run(self.files.path)
        self._done = report.success
        return TimeStep.termination(str(report), 1.0) if report.success else TimeStep.transition(str(report))

    def _lines(self, name: str) -> list[str]:
        # A name from the list cannot lead out of the folder.
        names = sorted(path.name for path in self.files.path.glob("*.py"))
        if name not in names:
            raise _Refused(f"There is no file {name[:80]!r}; there are {', '.join(names)}.")
        return (self.files.path / name).read_text(encoding="utf-8").split("\n")

    def _edit(self, name: str, first: int, last: int, text: str | None) -> str:
        lines = self._lines(name)
        if name.startswith("test_"):
            raise _Refused("The tests cannot be edited.")
        if not 1 <= first <= last <= len(lines):
            raise _Refused(f"{name} has the lines 1 to {len(lines)}, got {first}-{last}.")
        new = [] if text is None else text.split("\n")
        lines[first - 1 : last] = new
        try:
            (self.files.path / name).write_bytes("\n".join(lines).encode())
        except UnicodeEncodeError as error:
            raise _Refused("The text cannot be encoded as UTF-8.") from error
        return f"Edited {name}:\n{_numbered(new, first)}" if new else f"Deleted lines {first}-{last} of {name}."


def _written(bug: Bug) -> DirectoryFork:
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), bug)
        return DirectoryFork(folder)


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, first))
