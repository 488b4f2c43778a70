"""Daytona: the disk is forked, running processes are not."""

from __future__ import annotations

from typing import Any

from amc_agents_sandboxes.base import Finished, SandboxWorld


class DaytonaWorld(SandboxWorld):
    """A `daytona.AsyncSandbox` per particle. Keep its `AsyncDaytona` client open during the run."""

    async def run(self, command: str) -> Finished:
        """Run a command and wait for its end."""
        done = await self.sandbox.process.exec(command)
        return Finished(int(done.exit_code), done.result)

    async def read(self, path: str) -> bytes:
        """Read a file."""
        return bytes(await self.sandbox.fs.download_file(path))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        await self.sandbox.fs.upload_file(content, path)

    async def _fork(self, sandbox: Any) -> Any:
        return await sandbox.fork()

    async def _delete(self, sandbox: Any) -> None:
        await sandbox.delete()
