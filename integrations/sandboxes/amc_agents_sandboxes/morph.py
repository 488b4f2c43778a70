"""Morph: files, memory and processes are forked."""

from __future__ import annotations

from typing import Any

from amc_agents_sandboxes.base import Finished, SandboxWorld


class MorphWorld(SandboxWorld):
    """A `morphcloud.api.Instance` per particle. Files are read and written by commands, or by the SDK's SSH."""

    async def run(self, command: str) -> Finished:
        """Run a command and wait for its end."""
        done = await self.sandbox.aexec(command)
        return Finished(done.exit_code, f"{done.stdout}{done.stderr}")

    async def _fork(self, sandbox: Any) -> Any:
        snapshot, (forked,) = await sandbox.abranch(1)
        try:
            await snapshot.adelete()
        except BaseException:
            await forked.astop()
            raise
        return forked

    async def _delete(self, sandbox: Any) -> None:
        await sandbox.astop()
