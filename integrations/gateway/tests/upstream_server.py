"""A scripted upstream with OpenAI's API, served on 127.0.0.1 by uvicorn in a thread, and a gateway beside it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 4}}


def message(text: str | None = "hello", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: str, id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(*messages: dict[str, Any], usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    choices = [
        {"index": i, "message": it, "finish_reason": "tool_calls" if it.get("tool_calls") else "stop", **more}
        for i, it in enumerate(messages)
    ]
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "org/small", "choices": choices} | (
        {} if usage is None else {"usage": usage}
    )


def texts(*given: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Answer a request for n by the first n texts."""
    return lambda body: answer(*(message(text) for text in given[: body.get("n") or 1]))


class Upstream:
    """A scripted upstream: `reply` is a function of a request's JSON, which may be async."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.reply: Any = texts("hello")
        self.streamed: Any = ["hel", "lo"]
        """Pieces of a streamed answer, or an async function that yields events."""
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", lambda request: JSONResponse({"object": "list", "data": []})),
            ]
        )

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        if body.get("stream") and isinstance(self.streamed, list):
            return StreamingResponse(chunks(self.streamed, body), media_type="text/event-stream")
        if body.get("stream") and self.streamed is not None:
            return StreamingResponse(self.streamed(request), media_type="text/event-stream")
        replied = self.reply(body)
        if asyncio.iscoroutine(replied):
            replied = await until_gone(request, replied)
        return replied if isinstance(replied, Response) else JSONResponse(replied)


async def until_gone(request: Request, reply: Coroutine[Any, Any, Any]) -> Any:
    """Cancel a reply whose client leaves, which Starlette does only for streams."""
    task, gone = asyncio.ensure_future(reply), asyncio.ensure_future(request.receive())
    await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        return Response()
    gone.cancel()
    return task.result()


def chunk(delta: Any, **more: Any) -> bytes:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "org/small"}
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None, **more}]
    extra = {"usage": USAGE} if delta is None else {}
    return b"data: " + json.dumps({**common, "choices": choices, **extra}, ensure_ascii=False).encode() + b"\n\n"


async def chunks(pieces: list[str], body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces:
        yield chunk({"content": piece})
    yield chunk({}, finish_reason="stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        yield chunk(None)
    yield b"data: [DONE]\n\n"


class Served:
    """A server in a thread."""

    def __init__(self, server: uvicorn.Server) -> None:
        self.server = server
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._up = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread.start()
        assert self._up.wait(30)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        started = self.server.startup

        async def startup(sockets: Any = None) -> None:
            await started(sockets)
            self._up.set()

        self.server.startup = startup  # type: ignore[method-assign]
        try:
            await self.server.serve(sockets=[self.socket])
        finally:
            self._up.set()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.socket.close()


@contextmanager
def served(server: uvicorn.Server) -> Iterator[Served]:
    it = Served(server)
    try:
        yield it
    finally:
        it.stop()


def plain_server(app: Any) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", backlog=2048))
