"""Start a vLLM server, wait for it, stop it with all its processes, and find out from its log why it died."""

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

_CAUSES = (
    (r"Address already in use", "The port is in use: choose another --port (0 selects a free port)."),
    (
        r"CUDA out of memory|OutOfMemoryError|Free memory on device",
        "The GPU has too little free memory: stop other programs on it, split the model (--tensor-parallel-size), or "
        "request less memory (--gpu-memory-utilization).",
    ),
    (
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "The cache does not fit: shorten prompts (--max-model-len), or give it more memory (--gpu-memory-utilization, "
        "VLLM_CPU_KVCACHE_SPACE in GiB).",
    ),
    (
        r"Decrease --kv-cache-memory-bytes",
        "VLLM_CPU_KVCACHE_SPACE (GiB) exceeds the free memory of this machine: set a smaller value.",
    ),
    (r"Unsupported CPU attention configuration", "vLLM's CPU build does not support the model's head size."),
)
"""(pattern in vLLM's log, advice)."""

_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): \S|^\S+: error: \S|^ +Value error, \S")
_PREFIX = re.compile(r"^(\(.*?pid=\d+\) )?((DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] )?")
_CONSEQUENCES = ("Engine core initialization failed", "Worker failed with error", "validation error for")


def likely_cause(log: str, status: int) -> str:
    """Describe the likely cause in one or two sentences.

    Args:
        log: the text of the whole log.
        status: exit status of the process; a negative status is a signal number.
    """
    for pattern, advice in _CAUSES:
        if re.search(pattern, log):
            return f"Likely cause: {_first_line(log, pattern)}. {advice}"
    # The first error: later errors are its consequences in other processes.
    for line in map(_plain, log.splitlines()):
        if _ERROR.search(line) and not any(text in line for text in _CONSEQUENCES):
            return f"Likely cause: {line.strip().rstrip('.')[:200]}."
    if status == -9:
        return "It was killed (SIGKILL), possibly because the system ran out of memory."
    return "Its log names no error."


def last_lines(log: Path, count: int) -> str:
    """Return the last non-empty lines of a log, without vLLM's prefix."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 200 * 200))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [plain for line in re.split(r"[\r\n]+", text) if (plain := _plain(line)).strip()]
    return "\n".join(line[:300] for line in lines[-count:])


def _plain(line: str) -> str:
    return _PREFIX.sub("", line)


def _first_line(log: str, pattern: str) -> str:
    match = next(line for line in log.splitlines() if re.search(pattern, line))
    return _plain(match).strip().rstrip(".")[:150]


GRACE_SECONDS = 30.0
"""Seconds that a server gets to stop before it is killed."""
LEFT_BEHIND_SECONDS = 3.0
"""Seconds that its workers may outlive it before they are killed."""


class VllmServer:
    """A vLLM server in its own process group.

    As a context manager, it is healthy inside the block and all its processes have ended afterwards.

    Args:
        command: command line.
        environment: all environment variables of the process.
        url: URL of the server.
        log: file for its output; overwritten.
        start_seconds: time limit for the start in the context manager.
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
        """ID of the started process and of its process group."""
        return self._started_process().pid

    @property
    def stopping(self) -> bool:
        """True if `stop` was called."""
        return self._kill_at is not None

    def start(self) -> None:
        """Start the server without waiting for it."""
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
        """Wait until the server answers.

        Args:
            seconds: time limit, after which the server is stopped.
            progress: called about twice a second with the seconds waited and the last line of the log.

        Returns:
            False if `stop` was called in the meantime.

        Raises:
            ServerError: the server died or was not ready in time; the message contains the last lines of its log.
        """
        begun = time.monotonic()
        # Without a proxy, because the server runs on this machine.
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while not self.stopping:
                if self._started_process().poll() is not None:
                    raise ServerError(self.url, self.death(self.wait()))
                if self._healthy(client):
                    return True
                waited = time.monotonic() - begun
                if waited > seconds:
                    self.close()
                    raise ServerError(self.url, f"{_NOT_READY.format(seconds)}\n{self._tail()}")
                if progress is not None:
                    progress(waited, last_lines(self.log, 1))
                time.sleep(0.5)
        return False

    def wait(self) -> int:
        """Wait until the server and all its worker processes have ended.

        Returns:
            Its exit status; a negative status is a signal number.
        """
        process = self._started_process()
        while (status := process.poll()) is None:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._send(signal.SIGKILL)
            time.sleep(0.1)
        for number, seconds in ((0, LEFT_BEHIND_SECONDS), (signal.SIGKILL, 1.0)):
            end = time.monotonic() + seconds
            # Zombie processes still receive signals, hence the limits.
            while self._send(number) and time.monotonic() < end:
                time.sleep(0.05)
        return status

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal all processes of the server without waiting for them; a second call kills them.

        Safe in a signal handler. `wait` kills processes that still run after `GRACE_SECONDS`.
        """
        again = self.stopping
        self._kill_at = self._kill_at or time.monotonic() + GRACE_SECONDS
        self._send(signal.SIGKILL if again else number)

    def close(self) -> int:
        """Stop the server, wait for its end and return its exit status."""
        if not self.stopping and self._started_process().poll() is None:
            self.stop()
        return self.wait()

    def death(self, status: int) -> str:
        """Describe why the server ended: the likely cause and the last lines of its log."""
        ending = signal.Signals(-status).name if status < 0 else f"status {status}"
        cause = likely_cause(self.log.read_text(encoding="utf-8", errors="replace"), status)
        return f"vLLM ended ({ending}). {cause}\n{self._tail()}"

    def __enter__(self) -> VllmServer:
        """Start the server and wait until it is healthy."""
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
        """Stop the server."""
        self.close()

    def _started_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError(self.url, "not started: call start() first")
        return self._process

    def _healthy(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def _send(self, number: int) -> bool:
        """Signal the process group. Returns False if it no longer exists."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _tail(self) -> str:
        return f"The end of {self.log}:\n{last_lines(self.log, 15)}"


_NOT_READY = "not ready after {:g} s, and stopped: allow more time (--timeout), or look for the cause in its log"


def chosen_port(host: str, port: int) -> int:
    """Return the port, or a free port for 0.

    Raises:
        ConfigurationError: the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As vLLM does, so that a port with connections in TIME_WAIT does not count as in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port (0 selects a free "
                "port)"
            ) from error
        chosen: int = probe.getsockname()[1]
    return chosen


def log_name(name: str, port: int) -> str:
    """Return a file name for the log of a server."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{port}.log"
