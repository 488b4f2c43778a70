"""The process of a `ProcessFork`: it holds the object, answers requests, and forks itself.

A message is a length of eight bytes, then the content. Requests are pickled: the process runs the caller's code anyway.
Answers are JSON, because the process may run code of strangers: reading an answer creates plain data, NumPy arrays,
`TimeStep`s, and exceptions of Python and this package.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import inspect
import json
import os
import pickle
import random
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Literal

from amc_agents.errors import AmcError, ForkError, WorldError
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import TimeStep

_LENGTH = 8
LARGEST_ANSWER = 1 << 30
"""Maximum number of bytes of an answer."""
_NUMBERS = "biufc"
"""Kinds of NumPy data types: booleans and numbers."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the process."""

    kind: Literal["call", "get", "fork"]
    name: str = ""
    """The method or attribute."""
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The exception with which the process answered."""

    error: Exception


def send(connection: socket.socket, content: bytes) -> None:
    """Send a message."""
    connection.sendall(len(content).to_bytes(_LENGTH, "big") + content)


def receive(connection: socket.socket, largest: int | None = None) -> bytes:
    """Receive a message.

    Raises:
        EOFError: the other end is closed.
        WorldError: the message is larger than `largest` bytes.
    """
    n_bytes = int.from_bytes(_exactly(connection, _LENGTH), "big")
    if largest is not None and n_bytes > largest:
        raise WorldError(f"the process of this world sent an answer of {n_bytes} bytes; at most {largest} are read")
    return _exactly(connection, n_bytes)


def send_request(connection: socket.socket, request: Request) -> None:
    """Send a request, whose arguments are pickled."""
    send(connection, pickle.dumps(request))


def send_answer(connection: socket.socket, value: Any) -> None:
    """Send an answer, or a failure instead if the value is not plain data."""
    try:
        content = json.dumps({"value": _plain(value)}).encode()
    except (TypeError, RecursionError) as error:
        send_failure(connection, WorldError(f"the answer cannot be sent: {error}"))
    else:
        send(connection, content)


def send_failure(connection: socket.socket, error: Exception) -> None:
    """Send an exception as an answer."""
    kind = type(error)
    failure = {"kind": f"{kind.__module__}.{kind.__qualname__}", "text": excerpt(str(error))}
    try:
        failure |= {"args": _plain(error.args), "attributes": _plain(vars(error))}
    except (TypeError, RecursionError):
        failure["kind"] = kind.__qualname__
    send(connection, json.dumps({"failure": failure}).encode())


def receive_answer(connection: socket.socket) -> Any:
    """Receive an answer: a value, or `Failed`. An exception of another package becomes a `WorldError`.

    Raises:
        EOFError: the other end is closed.
        WorldError: the answer cannot be read.
    """
    content = receive(connection, LARGEST_ANSWER)
    try:
        answer = json.loads(content)
        if "value" in answer:
            return _value(answer["value"])
        return Failed(_failure(answer["failure"]))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise WorldError(
            f"the process of this world sent an answer that cannot be read: {excerpt(str(error))}"
        ) from error


def _plain(value: Any) -> Any:
    """Describe a value by JSON: scalars and lists as they are, others as an object with the name of the type."""
    if isinstance(value, TimeStep):
        return {"TimeStep": [_plain(each) for each in astuple(value)]}
    if "numpy" in sys.modules and isinstance(value, (sys.modules["numpy"].ndarray, sys.modules["numpy"].generic)):
        if value.dtype.kind in _NUMBERS:
            return {"array": [value.dtype.str, list(value.shape), _plain(value.tobytes())]}
    elif value is None or isinstance(value, (bool, int, float, str)):
        return value
    elif isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    elif isinstance(value, list):
        return [_plain(each) for each in value]
    elif isinstance(value, dict):
        return {"dict": [[_plain(name), _plain(each)] for name, each in value.items()]}
    else:
        for kind in (tuple, set, frozenset):
            if isinstance(value, kind):
                return {kind.__name__: [_plain(each) for each in value]}
    raise TypeError(
        "a ProcessFork returns None, numbers, text, bytes, lists, tuples, dicts, sets, NumPy arrays of numbers and "
        f"TimeSteps, got {type(value).__qualname__}: return its parts"
    )


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "dict":
        return {_value(name): _value(each) for name, each in content}
    if kind == "array":
        return _array(*content)
    makers: dict[str, Any] = {
        "TimeStep": lambda parts: TimeStep(*parts),
        "tuple": tuple,
        "set": set,
        "frozenset": frozenset,
    }
    return makers[kind](_value(each) for each in content)


def _array(dtype: str, shape: list[int], content: Any) -> Any:
    import numpy as np

    kind = np.dtype(dtype)
    if kind.kind not in _NUMBERS:
        raise ValueError(f"an array of {dtype}")
    array = np.frombuffer(_value(content), kind).reshape(shape).copy()
    return array if shape else array[()]


def _failure(plain: Mapping[str, Any]) -> Exception:
    """Create the exception of a failure. Exceptions of other packages become a `WorldError`."""
    module, _, name = plain["kind"].rpartition(".")
    kind = getattr(builtins, name, None) if module == "builtins" else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(*_value(plain["args"]))
        except TypeError:
            pass
    for ours in _ours(AmcError):
        if f"{ours.__module__}.{ours.__qualname__}" == plain["kind"]:
            error = ours.__new__(ours, *_value(plain["args"]))
            vars(error).update(_value(plain["attributes"]))
            return error
    return WorldError(f"{name}: {plain['text']}")


def _ours(kind: type[AmcError]) -> Iterator[type[AmcError]]:
    if kind.__module__.startswith("amc_agents."):
        yield kind
    for each in kind.__subclasses__():
        yield from _ours(each)


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    content = bytearray()
    while len(content) < n_bytes:
        part = connection.recv(min(n_bytes - len(content), 1 << 20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


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
