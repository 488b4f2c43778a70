"""Run a command in a copy: a process group of its own, an environment without secrets, bounded output."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from amc_agents.errors import ConfigurationError
from amc_agents.operations.code.processes import MARK, end_processes, note_group
from amc_agents.quoting import keep_secret, quoted

HALF_OUTPUT = 4 << 20
"""Of an output that is longer than twice as many bytes, so many are kept at its beginning and at its end."""
PORTS = 20
"""Number of ports that a copy gets."""
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_FIRST_PORT, _LAST_PORT = 10_240, 32_000
"""Below the ports that systems give to outgoing connections."""


@dataclass(frozen=True)
class Place:
    """Where a command runs."""

    state: Path
    """Folder of the copy's state, which holds everything else of the copy."""
    copy: Path
    """The copy of the repository."""
    inside: Path = Path()
    """Folder in which commands start, relative to `copy`."""
    port: int = 0
    """First of the copy's ports."""
    own_home: bool = False
    """Whether HOME is a folder of the copy."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables given by value; placeholders are filled in."""
    secrets: Sequence[str] = ()
    """Variables that look like secrets, and are passed nevertheless."""

    def filled(self, text: str) -> str:
        """Fill in {copy}, {out}, {home} and {port}; other braces stay."""
        known = {"copy": self.copy, "out": self.state, "home": self.home, "port": self.port}
        return re.sub(r"\{(copy|out|home|port)\}", lambda found: str(known[found[1]]), text)

    @property
    def home(self) -> Path:
        """The copy's own HOME."""
        return self.state / "home"

    def environment(self) -> dict[str, str]:
        """The user's variables, without those of git and those that look like secrets unless they are named."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") and (name in self.secrets or not _SECRET.search(name))
        }
        own = {
            MARK: str(self.state),
            "AMC_CODE_PORT": str(self.port),
            "GIT_CEILING_DIRECTORIES": str(self.copy.parent),
            "GIT_TERMINAL_PROMPT": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PWD": str(self.copy / self.inside),
        }
        if self.own_home:
            self.home.mkdir(exist_ok=True)
            own["HOME"] = str(self.home)
            passed = {name: value for name, value in passed.items() if not name.startswith("XDG_")}
        return passed | own | {name: self.filled(value) for name, value in self.variables.items()}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int | None
    """Exit status, negative for a signal; None: it was stopped at the time limit."""
    output: Path
    """What it printed, in order; the middle is left out if it is long."""
    left: int = 0
    """Number of processes that it had left running, such as daemons, and that were ended."""

    def tail(self, characters: int = 2_000) -> str:
        """The end of the output; "" if it is gone."""
        try:
            with open(self.output, "rb") as file:
                file.seek(max(0, self.output.stat().st_size - 4 * characters))
                return file.read().decode("utf-8", "replace")[-characters:]
        except OSError:
            return ""


def read_variables(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split `NAME=VALUE` and `NAME` into values, and names of variables of the user's environment.

    Raises:
        ConfigurationError: a named variable is not set.
    """
    values = dict(each.split("=", 1) for each in given if "=" in each)
    names = [each for each in given if "=" not in each]
    if unset := [name for name in names if name not in os.environ]:
        raise ConfigurationError(f"--env {unset[0]}: the variable is not set. Set it, or write --env {unset[0]}=VALUE")
    for name in names:
        keep_secret(os.environ[name])
    return values, names


def free_ports(copies: int) -> list[int]:
    """Return the first port of a free range for each copy."""
    starts = list(range(_FIRST_PORT, _LAST_PORT, PORTS))
    random.Random().shuffle(starts)
    found: list[int] = []
    for start in starts:
        if len(found) < copies and _is_free(start):
            found.append(start)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def run_command(command: Sequence[str], place: Place, name: str, *, seconds: float | None = None) -> Ended:
    """Run a command in a copy to its end, and end all that it has left running.

    It reads an empty standard input. A cancellation ends its processes first.

    Args:
        command: the program and its arguments.
        place: the copy.
        name: name of the file of its output, in the state folder.
        seconds: time limit.

    Raises:
        ConfigurationError: the program cannot be started.
    """
    output = place.state / f"{name}.log"
    # Of asyncio's own pipe `wait` would wait for the end, which a daemon can hold.
    read, write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=place.copy / place.inside,
            env=place.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError, ValueError) as error:
        os.close(read)
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"the command {quoted(command[0])} cannot be started ({reason}): is it installed, and on the PATH?"
        ) from error
    finally:
        os.close(write)
    note_group(place.state, process.pid)
    reading = asyncio.create_task(_keep_output(read, output))
    status: int | None = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                status = await process.wait()
    finally:
        left = await _ended(place.state)
        with suppress(TimeoutError):  # A daemon that hides itself may hold the pipe.
            async with asyncio.timeout(1.0):
                await process.wait()
                await reading
        reading.cancel()
    return Ended(status, output, left)


async def _ended(state: Path) -> int:
    """End the processes of a copy, also if this task is cancelled meanwhile."""
    ending = asyncio.create_task(asyncio.to_thread(end_processes, state))
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        await ending
        raise


async def _keep_output(pipe: int, path: Path) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", buffering=0)
    )
    with closing(transport), open(path, "w+b") as file:
        while content := await stream.read(1 << 16):
            file.write(content)
            file.flush()
            if file.tell() > 4 * HALF_OUTPUT:
                _shorten(file)
        if file.tell() > 2 * HALF_OUTPUT:
            _shorten(file)


def _shorten(file: BinaryIO) -> None:
    """Keep the beginning and the end."""
    size = file.tell()
    file.seek(size - HALF_OUTPUT)
    end = file.read()
    file.seek(HALF_OUTPUT)
    file.write(b"\n[... part of the output is left out here ...]\n" + end)
    file.truncate()


def shell(command: str) -> list[str]:
    """The arguments that run a line of shell."""
    return ["/bin/sh", "-c", command] if sys.platform != "win32" else ["cmd", "/c", command]
