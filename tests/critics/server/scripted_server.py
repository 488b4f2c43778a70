"""HTTP servers on real sockets with scripted faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

HANG = "hang"
"""Accept the request, but never answer."""
CUT = "cut"
"""Close the connection in the middle of the answer."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    status: int = 200
    body: Any = field(default_factory=dict)
    """Bytes are sent unchanged, other values as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    drip: float = 0.0
    """Seconds between the bytes of the body."""
    wait: float = 0.0
    """Seconds before the answer."""


class ScriptedServer:
    """Answers with `respond`; can be killed and restarted on the same port."""

    def __init__(self, respond: Callable[[Request], Reply | str]) -> None:
        self.respond = respond
        self.requests: list[Request] = []
        self.open = self.most_open = 0
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=1 << 24)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Kill after pending connections are accepted, since a connection to a closed server is never closed."""
        loop = asyncio.get_running_loop()
        for socket in self._server.sockets:
            loop.remove_reader(socket.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self.kill()
        await asyncio.sleep(0)

    def kill(self) -> None:
        """Close the port and every connection at once."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                request = await self._read(reader)
                self.requests.append(request)
                self.open += 1
                self.most_open = max(self.open, self.most_open)
                reply = self.respond(request)
                try:
                    await self._answer(writer, reply)
                finally:
                    self.open -= 1
                if reply == CUT:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        length = int(headers.get("content-length", 0))
        return Request(method, path, headers, json.loads(await reader.readexactly(length)) if length else None)

    async def _answer(self, writer: asyncio.StreamWriter, reply: Reply | str) -> None:
        if reply == HANG:
            await asyncio.sleep(30)
            return
        if isinstance(reply, str):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            await writer.drain()
            return
        await asyncio.sleep(reply.wait)
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{head}\r\n".encode())
        pieces: Sequence[bytes] = [body[i : i + 1] for i in range(len(body))] if reply.drip else [body]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(reply.drip)


def in_turn(*replies: Reply | str) -> Callable[[Request], Reply | str]:
    """Send the replies in order, then repeat the last reply."""
    waiting = list(replies)
    return lambda request: waiting.pop(0) if len(waiting) > 1 else waiting[0]
