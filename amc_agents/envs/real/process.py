"""A process per particle, for worlds that can be neither copied nor replayed, such as native simulators."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import spawn
from typing import Any, Generic, TypeVar, cast

from amc_agents.envs.real.process_child import Failed, Request, receive_answer, send, send_request
from amc_agents.envs.replay import World
from amc_agents.errors import ConfigurationError, EnvironmentStateError, WorldError
from amc_agents.quoting import quoted
from amc_agents.types import Task, TimeStep

T = TypeVar("T")

_CHILD = "import sys; from amc_agents.envs.real.process_child import main; main(int(sys.argv[1]))"
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
CLOSING_LIMIT_S = 2.0
"""Time in seconds that a process has to end before it is killed."""


class ProcessFork(Generic[T]):
    """An object in a separate process for each particle (a `Forkable`), forked by `os.fork`.

    The process is spawned, so that it inherits nothing of the caller, and a fork is a copy of the whole process, native
    memory included. A tool gets its particle's object from `current_environment(ProcessFork).object`: its methods are
    called in the process, one at a time, and its attributes are read from there. Arguments are pickled. Results are
    plain data: None, numbers, text, bytes, lists, tuples, dicts, sets, NumPy arrays of numbers, and `TimeStep`s.

    After a fork, the generators of the modules `random` and `numpy.random` are seeded anew in the copy, and so is the
    object if it has a method `reseed(seed)`, async or sync. Other generators must be seeded there.

    The world is `Restorable` if the object has the methods `snapshot()`, `restore(snapshot)` and `release(snapshot)`,
    async or sync, which then do the work.

    Args:
        make: creates the object in its process: a function or class of an importable module or of the main script.
        timeout: maximum time of a call of a method, in seconds; None: no limit. A process that exceeds it is killed.

    Raises:
        ConfigurationError: `make` cannot be pickled, or this system has no `os.fork`.
        WorldError: `make` failed.
    """

    def __init__(self, make: Callable[[], T], *, timeout: float | None = None) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("ProcessFork needs os.fork, which this system lacks: use ReplayFork or CopyFork")
        try:
            start = pickle.dumps((_preparation(), pickle.dumps(make)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"ProcessFork cannot send {quoted(make, 80)} to a process ({error}): give a function or class of a "
                "module, not a lambda or a function inside a function"
            ) from error
        ours, theirs = socket.socketpair()
        with theirs:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connect(ours)
        try:
            self._process_id: int
            self._process_id, restorable = self._ask(start)
        except BaseException:
            self._kill()
            raise
        self._limit(timeout)
        self._offer_snapshots(restorable)

    @property
    def object(self) -> T:
        """The particle's object: a proxy whose methods run in the particle's process."""
        return cast(T, _Proxy(self))

    async def fork(self, seed: int) -> ProcessFork[T]:
        """Copy the process, and seed the random generators of the copy.

        Raises:
            ForkError: the process has more than one thread, which a fork would not copy.
            WorldError: the process died.
        """
        return await asyncio.to_thread(self._fork, seed)

    async def close(self) -> None:
        """End the process; safe to call twice."""
        await asyncio.to_thread(self._close)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the object in the process.

        Raises:
            Exception: as the method raised it, if it is an exception of Python or of this package.
            WorldError: the method raised another exception or returned no plain data, the process died, or the call
                took longer than `timeout`.
            EnvironmentStateError: the world is closed.
        """
        return self._ask(Request("call", name, arguments, named))

    def _offer_snapshots(self, restorable: bool) -> None:
        # Only here, so that isinstance(world, Restorable) depends on the object.
        self._restorable = restorable
        if restorable:
            self.snapshot = partial(asyncio.to_thread, self.call, "snapshot")
            self.restore = partial(asyncio.to_thread, self.call, "restore")
            self.release = partial(asyncio.to_thread, self.call, "release")

    def _connect(self, connection: socket.socket) -> None:
        self._timeout: float | None = None
        self._lock = threading.Lock()
        self._socket: socket.socket | None = connection

    def _limit(self, timeout: float | None) -> None:
        self._timeout = timeout
        if self._socket is not None:
            self._socket.settimeout(timeout)

    def _fork(self, seed: int) -> ProcessFork[T]:
        twin = object.__new__(type(self))
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._ask(Request("fork", arguments=(seed,)), theirs)
            except BaseException:
                ours.close()
                raise
        twin._process = None
        twin._connect(ours)
        twin._process_id = twin._answer(ours)
        twin._limit(self._timeout)
        twin._offer_snapshots(self._restorable)
        return twin

    def _ask(self, message: Request | bytes, handed_over: socket.socket | None = None) -> Any:
        with self._lock:
            connection = self._socket
            if connection is None:
                raise EnvironmentStateError("this ProcessFork is closed: its process has ended")
            try:
                if isinstance(message, bytes):
                    send(connection, message)
                else:
                    send_request(connection, message)
                if handed_over is not None:
                    socket.send_fds(connection, [b"f"], [handed_over.fileno()])
            except OSError as error:
                self._kill()
                raise WorldError(f"the process of this world died ({error})") from error
            return self._answer(connection)

    def _answer(self, connection: socket.socket) -> Any:
        try:
            answer = receive_answer(connection)
        except WorldError:
            self._kill()
            raise
        except TimeoutError as error:
            self._kill()
            raise WorldError(f"the process of this world did not answer within {self._timeout:g} s") from error
        except (EOFError, OSError) as error:
            self._kill()
            raise WorldError("the process of this world died: its standard error may have the cause") from error
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def _close(self) -> None:
        with self._lock:
            connection, self._socket = self._socket, None
            if connection is None:
                return
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(CLOSING_LIMIT_S)
            try:
                connection.recv(1)  # Empty as soon as the process has ended.
            except OSError:
                os.kill(self._process_id, signal.SIGKILL)
            connection.close()
            self._reap()

    def _kill(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        process_id = self._process.pid if self._process else getattr(self, "_process_id", None)
        if process_id is not None:
            try:
                os.kill(process_id, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._reap()

    def _reap(self) -> None:
        # Copies are children of the process that was forked, which lets the system reap them.
        if self._process is not None:
            self._process.wait()


def _preparation() -> dict[str, Any]:
    """Return the data with which a new process imports the caller's modules, including its main script."""
    preparation = spawn.get_preparation_data("amc world")
    return {name: value for name, value in preparation.items() if name != "authkey"}


class _Proxy:
    """Looks like the object of a `ProcessFork`: methods are called, and attributes read, in its process."""

    def __init__(self, world: ProcessFork[Any]) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind, value = self._world._ask(Request("get", name))
        if kind == "value":
            return value
        return lambda *arguments, **named: self._world.call(name, *arguments, **named)


class ProcessWorld:
    """An `Environment` whose world lives in a separate process, and whose fork is a copy of that process.

    It isolates worlds that use global state, such as the module `random`, and copies worlds that `copy.deepcopy`
    cannot, such as native simulators. After a fork, the generators of `random` and `numpy.random` are seeded anew in
    the copy, and so is the world if it is `Reseedable`. The process starts at the first reset. Tasks, actions and
    answers are pickled.

    Args:
        make: creates the world in its process: a function or class of an importable module or of the main script.
        timeout: maximum time of a reset or step, in seconds; None: no limit. A process that exceeds it is killed.
    """

    def __init__(self, make: Callable[[], World], *, timeout: float | None = None) -> None:
        self._make, self._timeout = make, timeout
        self._process: ProcessFork[World] | None = None

    async def reset(self, task: Task) -> TimeStep:
        """Start `task`, in a new process if none is running.

        Raises:
            WorldError: `make` failed, or the process died.
        """
        if self._process is None:
            start: Any = partial(ProcessFork, self._make, timeout=self._timeout)
            self._process = await asyncio.to_thread(start)
        return await self._call("reset", task)

    async def step(self, action: str) -> TimeStep:
        """Execute an action. Raises `WorldError` if the process died or exceeded its time limit."""
        return await self._call("step", action)

    async def fork(self, seed: int) -> ProcessWorld:
        """Copy the process; before the first reset, return a world without a process.

        Raises:
            ForkError: the process has more than one thread, which a fork would not copy.
            WorldError: the process died.
        """
        twin = ProcessWorld(self._make, timeout=self._timeout)
        twin._process = None if self._process is None else await self._process.fork(seed)
        return twin

    async def close(self) -> None:
        """End the process; safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    async def _call(self, name: str, argument: Task | str) -> TimeStep:
        if self._process is None:
            raise EnvironmentStateError(f"{name} was called before reset or after close: call reset(task) first")
        return cast(TimeStep, await asyncio.to_thread(self._process.call, name, argument))
