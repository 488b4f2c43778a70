"""e2b: files, memory and processes are forked."""

from __future__ import annotations

from typing import Any, Self

from e2b import CommandExitException

from amc_agents_sandboxes.base import Finished, SandboxWorld


class E2BWorld(SandboxWorld):
    """An `e2b.AsyncSandbox` per particle.

    Args:
        sandbox: a running sandbox.
        timeout: lifetime of each fork in seconds; None: e2b's default (300 s).
    """

    def __init__(self, sandbox: Any, *, timeout: int | None = None) -> None:
        super().__init__(sandbox)
        self._timeout = timeout

    async def run(self, command: str) -> Finished:
        """Run a command and wait for its end."""
        try:
            done = await self.sandbox.commands.run(command)
        except CommandExitException as error:
            done = error
        return Finished(done.exit_code, f"{done.stdout}{done.stderr}")

    async def read(self, path: str) -> bytes:
        """Read a file."""
        return bytes(await self.sandbox.files.read(path, format="bytes"))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        await self.sandbox.files.write(path, content)

    def _of(self, sandbox: Any) -> Self:
        return type(self)(sandbox, timeout=self._timeout)

    async def _fork(self, sandbox: Any) -> Any:
        (forked,) = await sandbox.fork(count=1, timeout=self._timeout)
        if isinstance(forked, Exception):
            raise forked
        return forked

    async def _delete(self, sandbox: Any) -> None:
        await sandbox.kill()
