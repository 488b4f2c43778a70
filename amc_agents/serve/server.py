"""A running vLLM server: started, waited for, and stopped with all its processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from amc_agents.errors import ConfigurationError, ServerError
from amc_agents.serve.causes import last_lines, likely_cause

GRACE_SECONDS = 30.0
"""How long a server may take to end after it was asked to."""
LEFT_BEHIND_SECONDS = 3.0
"""How long its workers may outlive it."""


class VllmServer:
    """One vLLM server in a process group of its own.

    Used as a context manager it is healthy inside, and gone afterwards.

    Args:
        command: what to run.
        environment: all its variables.
        url: where it will answer.
        log: file for what it prints; written over.
        start_seconds: how long the context manager waits.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        url: str,
        log: str | Path,
        *,
        start_seconds: float = 600.0,
    ) -> None:
        self.command, self.environment, self.url, self.log = list(command), dict(environment), url, Path(log)
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None

    @property
    def pid(self) -> int:
        """Of the process that was started, which is also its group's number."""
        return self._started().pid

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._kill_at is not None

    def start(self) -> None:
        """Start it, and return at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self.stopping:
            self._send(signal.SIGTERM)

    def wait_until_healthy(self, seconds: float, progress: Callable[[float, str], None] | None = None) -> bool:
        """Wait until it answers.

        Args:
            seconds: the most to wait; then it is stopped.
            progress: called about twice a second with the seconds waited and the last line of the log.

        Returns:
            False where it was asked to stop meanwhile.

        Raises:
            ServerError: it died, or was not ready in time; with the last lines of the log.
        """
        begun = time.monotonic()
        # Not through a proxy: it is on this machine.
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while not self.stopping:
                if self._started().poll() is not None:
                    raise ServerError(self.url, self.death(self.wait()))
                if self._healthy(client):
                    return True
                waited = time.monotonic() - begun
                if waited > seconds:
                    self.close()
                    raise ServerError(self.url, f"not ready after {seconds:g} s, and stopped\n{self._tail()}")
                if progress is not None:
                    progress(waited, last_lines(self.log, 1))
                time.sleep(0.5)
        return False

    def wait(self) -> int:
        """Wait for its end, and for that of every process that it started.

        Returns:
            Its status, negative for a signal's number.
        """
        process = self._started()
        while (status := process.poll()) is None:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._send(signal.SIGKILL)
            time.sleep(0.1)
        for how, seconds in ((0, LEFT_BEHIND_SECONDS), (signal.SIGKILL, 1.0)):
            end = time.monotonic() + seconds
            # Dead ones that nobody collects count as living here, hence the limits.
            while self._send(how) and time.monotonic() < end:
                time.sleep(0.05)
        return status

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Ask all its processes to end, and return at once; the second time they are killed.

        Safe in a signal handler. `wait` kills what has not ended after the time of grace.
        """
        again = self.stopping
        self._kill_at = self._kill_at or time.monotonic() + GRACE_SECONDS
        self._send(signal.SIGKILL if again else how)

    def close(self) -> int:
        """Stop it and wait. Returns its status."""
        if not self.stopping and self._started().poll() is None:
            self.stop()
        return self.wait()

    def death(self, status: int) -> str:
        """What is known of its end: the likely cause and the last lines of its log."""
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        cause = likely_cause(self.log.read_text(encoding="utf-8", errors="replace"), status)
        return f"vLLM ended ({how}). {cause}\n{self._tail()}"

    def __enter__(self) -> VllmServer:
        """Start it and wait until it is healthy."""
        self.start()
        try:
            self.wait_until_healthy(self._start_seconds)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError(self.url, "not started")
        return self._process

    def _healthy(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def _send(self, how: int) -> bool:
        """Signal the group; False where there is none any more."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, how)
        except ProcessLookupError:
            return False
        return True

    def _tail(self) -> str:
        return f"The end of {self.log}:\n{last_lines(self.log, 15)}"


def chosen_port(host: str, port: int) -> int:
    """The port, or a free one for 0.

    Raises:
        ConfigurationError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As vLLM does, so that a port whose last connections are just closing is not taken for one in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port (0: a free one)"
            ) from error
        found: int = probe.getsockname()[1]
    return found


def log_name(name: str, port: int) -> str:
    """A file name for the log of a server."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{port}.log"
