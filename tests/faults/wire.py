"""A proxy on 127.0.0.1 in front of every server that the library asks: it passes on the right answer, or breaks it.

Which request is broken is written down before (the n-th to a path), so nothing depends on which request is faster.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

FOREVER = 10**9
_DRIPS = 60
Upstream = Callable[[str, Any], Any]
"""Path and JSON of a request -> the right answer."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with an answer."""

    name: str
    send: Callable[[Connection, Any], Awaitable[None]]
    """Writes to the connection instead of the right answer, which it is given."""
    patience: bool = False
    """The client can only notice by its time limit."""


@dataclass
class Exchange:
    """A request, and the answer that it got."""

    path: str
    sent: Any
    right: Any
    fault: str = ""


@dataclass
class Plan:
    """Breaks the requests `first` to `last` to a path, counted from 0 when the plan is made."""

    path: str
    fault: Fault
    first: int = 0
    last: int = 0
    seen: int = 0

    def applies(self, path: str) -> bool:
        if path != self.path:
            return False
        self.seen += 1
        return self.first <= self.seen - 1 <= self.last


class Connection:
    """The writing end of a connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, body: bytes, status: int = 200, *, length: int | None = None, **headers: str) -> None:
        named = {"Content-Type": "application/json", "Content-Length": str(len(body) if length is None else length)}
        named |= {name.replace("_", "-"): text for name, text in headers.items()}
        head = "".join(f"{name}: {text}\r\n" for name, text in named.items())
        await self.raw(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode() + body)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self._writer.transport.abort()


@dataclass
class Wire:
    """The proxy, and what passed through it."""

    upstream: Upstream
    url: str = ""
    log: list[Exchange] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    _serving: set[Any] = field(default_factory=set)
    """Strong references: a task that waits for nothing else would be collected."""

    def broken(self, path: str, fault: Fault, *, first: int = 0, last: int = FOREVER) -> None:
        """Break requests to a path from now on."""
        self.plans.append(Plan(path, fault, first, last))

    def asked(self, path: str) -> list[Exchange]:
        return [exchange for exchange in self.log if exchange.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self._serving.add(asyncio.current_task())
        try:
            while True:
                await self._exchange(reader, connection)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            connection.close()
            self._serving.discard(asyncio.current_task())

    async def _exchange(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        path, sent = await _request(reader)
        exchange = Exchange(path, sent, self.upstream(path, sent))
        plan = next((plan for plan in self.plans if plan.applies(path)), None)
        self.log.append(exchange)
        if plan is None:
            await connection.answer(json.dumps(exchange.right).encode())
            return
        exchange.fault = plan.fault.name
        await plan.fault.send(connection, exchange.right)


async def _request(reader: asyncio.StreamReader) -> tuple[str, Any]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    path = lines[0].split(" ")[1]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    length = int(headers.get("content-length", 0))
    return path, json.loads(await reader.readexactly(length)) if length else None


@contextmanager
def wire(upstream: Upstream) -> Iterator[Wire]:
    """Run a proxy in a thread. At the end every connection is closed, hanging ones too."""
    proxy = Wire(upstream)
    with served(proxy.serve) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy


@contextmanager
def served(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Iterator[int]:
    """Serve connections in a thread, and yield the port. At the end every connection is closed."""
    ready, loop, ports = threading.Event(), asyncio.new_event_loop(), list[int]()

    def run() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24))
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        loop.run_forever()
        server.close()
        loop.run_until_complete(_all_cancelled())
        loop.close()

    thread = threading.Thread(target=run, name="wire")
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _all_cancelled() -> None:
    """End every connection, those too that were accepted a moment ago."""
    for _ in range(5):
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0)


# --- faults of the connection ----------------------------------------------------------------------------------------


async def _never() -> None:
    await asyncio.Event().wait()


async def hang(connection: Connection, right: Any) -> None:
    await _never()


async def hang_in_headers(connection: Connection, right: Any) -> None:
    await connection.raw(b"HTTP/1.1 200 OK\r\nContent-Type: appl")
    await _never()


async def hang_in_body(connection: Connection, right: Any) -> None:
    body = json.dumps(right).encode()
    await connection.answer(body[: len(body) // 2], length=len(body))
    await _never()


async def late(connection: Connection, right: Any) -> None:
    await asyncio.sleep(0.05)
    await connection.answer(json.dumps(right).encode())


async def drip(connection: Connection, right: Any) -> None:
    """Slow-loris: a byte now and then, until long after the time limit (the clients of providers wait for ever)."""
    await connection.answer(b"", length=FOREVER)
    for _ in range(_DRIPS):
        await connection.raw(b" ")
        await asyncio.sleep(0.02)
    raise ConnectionError


async def drip_headers(connection: Connection, right: Any) -> None:
    await connection.raw(b"HTTP/1.1 200 OK\r\n")
    for number in range(_DRIPS):
        await connection.raw(f"X-{number}: y\r\n".encode())
        await asyncio.sleep(0.02)
    raise ConnectionError


async def empty(connection: Connection, right: Any) -> None:
    raise ConnectionError


async def reset(connection: Connection, right: Any) -> None:
    connection.reset()
    raise ConnectionError


async def cut(connection: Connection, right: Any) -> None:
    body = json.dumps(right).encode()
    await connection.answer(body[: len(body) // 2], length=len(body))
    raise ConnectionError


async def reset_in_body(connection: Connection, right: Any) -> None:
    body = json.dumps(right).encode()
    await connection.answer(body[: len(body) // 2], length=len(body))
    connection.reset()
    raise ConnectionError


async def cut_chunk(connection: Connection, right: Any) -> None:
    await connection.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{")
    raise ConnectionError


async def not_http(connection: Connection, right: Any) -> None:
    await connection.raw(b"\x16\x03\x01 SSH-2.0-OpenSSH_9.2\r\n\r\n")
    raise ConnectionError


async def endless_headers(connection: Connection, right: Any) -> None:
    await connection.raw(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * (1 << 20) + b"\r\n\r\n{}")
    raise ConnectionError


# --- faults of the answer --------------------------------------------------------------------------------------------


def status(code: int, body: Any = None, **headers: str) -> Callable[[Connection, Any], Awaitable[None]]:
    """An answer with a status; None: an error of OpenAI's form."""
    if body is None:
        body = {"error": {"message": f"scripted {code}", "type": "scripted", "code": code}}

    async def send(connection: Connection, right: Any) -> None:
        await connection.answer(body if isinstance(body, bytes) else json.dumps(body).encode(), code, **headers)

    return send


def said(body: bytes, **headers: str) -> Callable[[Connection, Any], Awaitable[None]]:
    """A successful answer of these bytes."""
    return status(200, body, **headers)


async def truncated(connection: Connection, right: Any) -> None:
    body = json.dumps(right).encode()
    await connection.answer(body[: len(body) // 2])


@cache
def _bomb() -> bytes:
    return gzip.compress(b" " * (1 << 26))


async def gzip_bomb(connection: Connection, right: Any) -> None:
    await connection.answer(_bomb(), Content_Encoding="gzip")


def changed(change: Callable[[Any], Any]) -> Callable[[Connection, Any], Awaitable[None]]:
    """The right answer, changed: a copy is handed to `change`, which returns what to send."""

    async def send(connection: Connection, right: Any) -> None:
        await connection.answer(json.dumps(change(json.loads(json.dumps(right)))).encode())

    return send


HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
_OVERLOADED = {"error": {"message": "too many requests", "type": "rate_limit", "code": "rate_limit_exceeded"}}

LATE = (Fault("answers late, but in time", late),)
LOST = (
    Fault("closed without an answer", empty),
    Fault("reset before an answer", reset),
    Fault("cut in the body", cut),
    Fault("reset in the body", reset_in_body),
    Fault("cut in a chunk", cut_chunk),
    Fault("not HTTP", not_http),
    Fault("1 MB of headers", endless_headers),
)
SLOW = (
    Fault("hangs", hang, patience=True),
    Fault("hangs in the headers", hang_in_headers, patience=True),
    Fault("hangs in the body", hang_in_body, patience=True),
    Fault("drips the body (slow-loris)", drip, patience=True),
    Fault("drips headers", drip_headers, patience=True),
)
UNAVAILABLE = (
    *(Fault(f"HTTP {code}", status(code)) for code in (500, 502, 503, 504)),
    Fault("HTTP 502 in HTML", status(502, HTML)),
    Fault("HTTP 500 with a body of 10 MB", status(500, b"x" * 10_000_000)),
)
TOO_MANY = (
    Fault("HTTP 429", status(429, _OVERLOADED)),
    Fault("HTTP 429, Retry-After: 0.01", status(429, _OVERLOADED, Retry_After="0.01")),
    Fault("HTTP 429, Retry-After: -5", status(429, _OVERLOADED, Retry_After="-5")),
    Fault("HTTP 429, Retry-After: soon", status(429, _OVERLOADED, Retry_After="soon")),
    Fault("HTTP 429, Retry-After: nan", status(429, _OVERLOADED, Retry_After="nan")),
)
ABSURD = (
    Fault("HTTP 429, Retry-After: a year", status(429, _OVERLOADED, Retry_After="31536000")),
    Fault("HTTP 429, Retry-After: 1e300", status(429, _OVERLOADED, Retry_After="1e300")),
    Fault("HTTP 429, Retry-After in 2099", status(429, _OVERLOADED, Retry_After="Fri, 31 Dec 2099 23:59:59 GMT")),
)
REFUSED = (
    *(Fault(f"HTTP {code}", status(code)) for code in (400, 401, 403, 404, 413)),
    Fault("redirected", status(307, b"", Location="http://127.0.0.1:9/elsewhere?key=sk-secret")),
)
UNREADABLE = (
    Fault("HTTP 204", status(204, b"")),
    Fault("empty body", said(b"")),
    Fault("truncated JSON", truncated),
    Fault("HTML", said(HTML, Content_Type="text/html")),
    Fault("not UTF-8", said(b'{"a": "\xff\xfe"}')),
    Fault("JSON nested 100,000 deep", said(b"[" * 100_000)),
    Fault("10 MB of text", said(b"x" * 10_000_000)),
)
GZIP = (Fault("gzip bomb, 64 MiB", gzip_bomb),)
WRONG_TYPE = (
    Fault("JSON null", said(b"null")),
    Fault("JSON list", said(b"[1, 2]")),
    Fault("JSON string", said(b'"ok"')),
    Fault("JSON without fields", said(b"{}")),
    Fault("an error with status 200", said(json.dumps({"error": {"message": "out of memory"}}).encode())),
)
