"""Backends of deepagents that work in the calling particle's folder, and a middleware that records its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired

from deepagents.backends import DEFAULT_EXECUTE_TIMEOUT, FilesystemBackend, LocalShellBackend
from langchain.agents.middleware import AgentMiddleware, AgentState
from langgraph.runtime import Runtime

from amc_agents import current_environment
from amc_agents.envs import DirectoryFork
from amc_agents.runtime.effects import Effect

TOOLS: dict[str, Effect] = dict.fromkeys(
    ("ls", "read_file", "write_file", "edit_file", "delete", "glob", "grep", "execute", "task"), "world"
)
"""Effects of the tools that `create_deep_agent` adds, for `amc(..., tools=TOOLS)`.

`task` also covers the tools of all sub-agents, which `amc` does not search: they must act on the particle's folder too,
or be harmless when repeated.
"""

ARTIFACTS = ("large_tool_results/*", "conversation_history/*")
"""Files of deepagents itself (long tool results, summarized conversations), for `DirectoryFork(ignore=ARTIFACTS)`."""


def particle_directory() -> DirectoryFork:
    """Return the calling particle's world, which must be a `DirectoryFork`."""
    return current_environment(DirectoryFork)


class _InParticle:
    """Replaces the fixed root of a `FilesystemBackend` by the folder of the calling particle."""

    _world: Callable[[], DirectoryFork]

    @property
    def cwd(self) -> Path:
        """The particle's folder.

        Raises:
            EnvironmentStateError: outside of a particle and of `use_environment`, or the world is closed.
        """
        return self._world().path.resolve()

    @cwd.setter
    def cwd(self, root: Path) -> None:
        """Ignore the root that the base class sets, which is the folder of no particle."""


class ForkingBackend(_InParticle, FilesystemBackend):
    """A `FilesystemBackend` in the calling particle's folder, for `create_deep_agent(backend=ForkingBackend())`.

    Paths start at the particle's folder and cannot leave it (deepagents' `virtual_mode`). The agent has no shell.

    Args:
        world: returns the calling particle's folder. Pass it if the world is a `WorldBundle`:
            `lambda: current_environment(WorldBundle).files`.
        max_file_size_mb: size in megabytes above which `grep` may skip a file.
    """

    def __init__(self, world: Callable[[], DirectoryFork] = particle_directory, *, max_file_size_mb: int = 10) -> None:
        self._world = world
        super().__init__(virtual_mode=True, max_file_size_mb=max_file_size_mb)


class ForkingShellBackend(_InParticle, LocalShellBackend):
    """A `ForkingBackend` with a shell: `execute` runs commands on this machine, in the particle's folder.

    A command is not confined to the folder: it can reach all that the user of this process can, and what it changes
    elsewhere is shared by all particles.

    Args:
        world: as of `ForkingBackend`.
        timeout: time limit of a command in seconds, if the model sets none.
        max_output_bytes: size at which a command's output is cut.
        env: environment variables of commands. None: empty.
        inherit_env: commands also inherit the variables of this process.
    """

    def __init__(
        self,
        world: Callable[[], DirectoryFork] = particle_directory,
        *,
        timeout: int = DEFAULT_EXECUTE_TIMEOUT,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
    ) -> None:
        self._world = world
        super().__init__(
            virtual_mode=True,
            timeout=timeout,
            max_output_bytes=max_output_bytes,
            env=None if env is None else dict(env),
            inherit_env=inherit_env,
        )


class DiffState(AgentState[Any]):
    """The agent's state with the changes in its folder."""

    diff: NotRequired[str]
    """The changes as a unified diff, as of `DirectoryFork.diff`."""


class RecordDiff(AgentMiddleware[DiffState, Any, Any]):
    """Store the particle's changes as `diff` in the state when the agent ends, so that the caller gets the winner's.

    A particle that a limit stops before its end has no `diff`.

    Args:
        world: returns the calling particle's folder, as of `ForkingBackend`.
    """

    state_schema = DiffState

    def __init__(self, world: Callable[[], DirectoryFork] = particle_directory) -> None:
        super().__init__()
        self._world = world

    def after_agent(self, state: DiffState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Return the changes as an update of the state."""
        return {"diff": self._world().diff()}

    async def aafter_agent(self, state: DiffState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Return the changes as an update of the state."""
        return await asyncio.to_thread(self.after_agent, state, runtime)
