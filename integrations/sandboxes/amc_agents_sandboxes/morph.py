"""Morph: files, memory and processes are forked."""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import PurePosixPath
from shlex import quote
from typing import Any

from amc_agents_sandboxes.base import Finished, SandboxWorld


class MorphWorld(SandboxWorld):
    """A `morphcloud.api.Instance` per particle.

    Its files are read and written by commands of the instance, as base64: Morph transfers files by SSH alone.
    """

    async def run(self, command: str) -> Finished:
        """Run a command and wait for its end."""
        done = await self.sandbox.aexec(command)
        return Finished(done.exit_code, f"{done.stdout}{done.stderr}")

    async def read(self, path: str) -> bytes:
        """Read a file.

        Raises:
            OSError: the instance cannot read it.
        """
        return b64decode(await self._shell(f"base64 < {quote(path)}"))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file, and create its folder. The file is replaced when all of the content has arrived.

        Raises:
            OSError: the instance cannot write it.
        """
        part = quote(f"{path}.amc-part")
        await self._shell(f"mkdir -p {quote(str(PurePosixPath(path).parent))} && : > {part}")
        for start in range(0, len(content), _AT_ONCE):
            text = b64encode(content[start : start + _AT_ONCE]).decode()
            await self._shell(f"printf %s {text} | base64 -d >> {part}")
        await self._shell(f"mv {part} {quote(path)}")

    async def _shell(self, command: str) -> str:
        done = await self.sandbox.aexec(command)
        if done.exit_code:
            raise OSError(f"a command of the Morph instance failed with exit code {done.exit_code}: {done.stderr}")
        return str(done.stdout)

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


_AT_ONCE = 48_000
"""Bytes of a file in a command, whose length Linux limits to 128 KiB."""
