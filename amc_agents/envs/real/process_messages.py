"""Messages between a `ProcessFork` and its process: a length of eight bytes, then a pickle.

Only processes that the library has started hold an end of these sockets, so that unpickling is safe.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_LENGTH = 8


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
    """The exception that a request raised."""

    error: Exception


def send(connection: socket.socket, message: Any) -> None:
    """Send a message; bytes are sent as they are."""
    content = message if isinstance(message, bytes) else pickle.dumps(message)
    connection.sendall(len(content).to_bytes(_LENGTH, "big") + content)


def receive(connection: socket.socket) -> Any:
    """Receive a message. Raises `EOFError` if the other end is closed."""
    return pickle.loads(receive_bytes(connection))


def receive_bytes(connection: socket.socket) -> bytes:
    """Receive a message without unpickling it."""
    return _exactly(connection, int.from_bytes(_exactly(connection, _LENGTH), "big"))


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    content = bytearray()
    while len(content) < n_bytes:
        part = connection.recv(n_bytes - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
