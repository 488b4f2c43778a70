"""The process of a `ProcessFork`: holds the object, answers requests, and forks itself."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import random
import signal
import socket
import sys
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from amc_agents.envs.real.process_messages import Request, receive, send_answer, send_failure
from amc_agents.errors import ForkError, WorldError
from amc_agents.quoting import quoted

_TASKS = Path("/proc/self/task")


def main(descriptor: int) -> None:
    """Create the object and serve it until the other end closes the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The system reaps the copies of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who then closes the connection.
    connection = socket.socket(fileno=descriptor)
    try:
        preparation, make = pickle.loads(receive(connection))
        spawn.prepare(preparation)
        held = pickle.loads(make)()
    except Exception as error:
        send_failure(connection, WorldError(f"the world of a ProcessFork could not be created: {quoted(error)}"))
        return
    restorable = all(callable(getattr(held, name, None)) for name in ("snapshot", "restore", "release"))
    send_answer(connection, (os.getpid(), restorable))
    serve(connection, held)


def serve(connection: socket.socket, held: Any) -> None:
    """Answer requests about an object."""
    while True:
        try:
            request: Request = pickle.loads(receive(connection))
        except (EOFError, OSError):
            os._exit(0)
        if request.kind == "fork":
            connection = _fork(connection, held, request.arguments[0])
        else:
            _answer(connection, held, request)


def _answer(connection: socket.socket, held: Any, request: Request) -> None:
    try:
        value = getattr(held, request.name)
        if request.kind == "call":
            answer = _finished(value(*request.arguments, **request.named))
        else:
            answer = ("method", None) if callable(value) else ("value", value)
    except Exception as error:
        send_failure(connection, error)
    else:
        send_answer(connection, answer)


def _fork(connection: socket.socket, held: Any, seed: int) -> socket.socket:
    """Fork this process. Returns the connection to serve: in the copy, the one that the request handed over."""
    _, (descriptor, *_), *_ = socket.recv_fds(connection, 1, 1)
    n_threads = len(list(_TASKS.iterdir())) if _TASKS.is_dir() else 1
    if n_threads > 1:
        os.close(descriptor)
        send_failure(connection, ForkError(
            f"the world's process has {n_threads} threads, and os.fork copies only one: let it use a single thread, "
            "or use ReplayFork"
        ))  # fmt: skip
        return connection
    if os.fork():
        os.close(descriptor)
        send_answer(connection, None)
        return connection
    connection.close()
    connection = socket.socket(fileno=descriptor)
    _reseed(held, seed)
    send_answer(connection, os.getpid())
    return connection


def _reseed(held: Any, seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if hasattr(held, "reseed"):
        _finished(held.reseed(seed))


def _finished(answer: Any) -> Any:
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
