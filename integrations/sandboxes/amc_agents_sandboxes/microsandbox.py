"""microsandbox: virtual machines on this computer; files, memory and processes are forked."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from amc_agents_sandboxes.base import Finished, SandboxWorld


class MicrosandboxWorld(SandboxWorld):
    """A `microsandbox.Sandbox` per particle."""

    async def run(self, command: str) -> Finished:
        """Run a command and wait for its end."""
        done = await self.sandbox.shell(command)
        return Finished(done.exit_code, f"{done.stdout_text}{done.stderr_text}")

    async def read(self, path: str) -> bytes:
        """Read a file."""
        return bytes(await self.sandbox.fs.read(path))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        await self.sandbox.fs.write(path, content)

    async def _fork(self, sandbox: Any) -> Any:
        return await sandbox.fork(f"amc-{uuid4().hex}")

    async def _delete(self, sandbox: Any) -> None:
        name = await sandbox.name()
        await sandbox.kill()
        await type(sandbox).remove(name)
