"""The gateway's HTTP application, and a request for a chat completion from its first byte to the end of its answer."""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from amc_agents.usage import Meter, metering, total
from amc_agents_gateway.callers import Admission, Caller, secret_of
from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.errors import ApiError, ClientGone, as_api_error, no_such_model, stopping
from amc_agents_gateway.gateway import Gateway, plain_model, plain_models
from amc_agents_gateway.targets import Target
from amc_agents_gateway.wire import DONE, Asked, event, read_body, read_request

T = TypeVar("T")
_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_LONG = 100_000
"""Bytes of a request above which it is read in a thread."""
_FAREWELL_S = 1.0
CLIENT_GONE = 499
"""Status in metrics and logs of a request whose client left."""


class Reply:
    """The answer to a request, which can begin only once."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.admission: Admission | None = None
        """The caller's limits, which the headers of the answer tell."""
        self.status = 0
        """The HTTP status; 0: the answer has not begun."""

    async def whole(self, status: int, plain: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer in JSON."""
        content = json.dumps(plain, separators=(",", ":")).encode()
        sizes = {"content-type": "application/json", "content-length": str(len(content))}
        await self._start(status, {**sizes, **(headers or {})})
        await self._send({"type": "http.response.body", "body": content})

    async def event(self, line: bytes) -> None:
        """Send an event of a stream; the first begins the answer."""
        if not self.status:
            # Proxies that buffer would hold back a stream.
            await self._start(200, {**_STREAM, "x-accel-buffering": "no"})
        await self._send({"type": "http.response.body", "body": line + b"\n\n", "more_body": True})

    async def end(self, last: bytes) -> None:
        """Send the last event of a stream."""
        await self.event(last)
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: ApiError) -> None:
        """Send an error: as the answer, or as the last event of a stream that has begun."""
        if not self.status:
            await self.whole(error.status, error.body, error.headers)
        else:
            await self.end(event(error.body))

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        limits = {} if self.admission is None else self.admission.headers
        named = {"x-request-id": self._request_id, **limits, **headers}
        pairs = [(name.encode(), value.encode()) for name, value in named.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


class Exchange(Response):
    """Answers a request for a chat completion.

    Limits, budgets and connections are held exactly as long as the answer takes: all of it happens in `__call__`, and a
    client that leaves cancels it.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self._caller: Caller | None = None
        self._model = ""
        self._meter = Meter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, count and log the request."""
        headers, start, code, outcome = Headers(scope=scope), time.perf_counter(), "", 0
        request_id = _request_id(headers)
        reply = Reply(send, request_id)
        self._gateway.metrics.in_progress.inc()
        try:
            await self._served(headers, receive, reply)
        except ClientGone:
            outcome = CLIENT_GONE
        except Exception as error:
            told = as_api_error(error)
            code, outcome = told.code or told.type, told.status
            self._log_error(request_id, told, error)
            # A client that does not read is not waited for; the server closes its connection.
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await reply.fail(told)
        except asyncio.CancelledError:
            told = stopping()
            code, outcome = told.code or told.type, told.status
            await reply.fail(told)
            raise
        finally:
            self._gateway.metrics.in_progress.dec()
            self._count(request_id, outcome or reply.status, code, time.perf_counter() - start)

    async def _served(self, headers: Headers, receive: Receive, reply: Reply) -> None:
        gateway, limits = self._gateway, self._gateway.config.server
        gateway.refuse_when_stopping()
        self._caller = caller = gateway.keys.caller(headers.get("authorization"))
        reply.admission = admission = gateway.admission(caller)
        with admission.admitted():
            declared = headers.get("content-length")
            content = await read_body(receive, declared, limits.max_body_bytes, limits.body_timeout_s)
            # Long texts are read beside the requests of others.
            read = functools.partial(read_request, content, limits.max_n, limits.max_messages)
            asked = await asyncio.to_thread(read) if len(content) > _LONG else read()
            target = gateway.target(asked.model, caller)
            self._model = asked.model
            target.check(asked)
            with gateway.accounts.spending(caller.name), metering(self._meter):
                answer = await _until_gone(receive, self._answered(target, asked, reply))
        # A client that has its answer may send its next request, so the limits are released before.
        await (reply.end(DONE) if answer is None else reply.whole(200, answer))

    async def _answered(self, target: Target, asked: Asked, reply: Reply) -> dict[str, Any] | None:
        """Return a whole answer; or send all of a stream but its last event, and return None."""
        async with asyncio.timeout(self._gateway.config.server.request_timeout_s):
            if not asked.stream:
                return await target.answer(asked)
            async with aclosing(target.events(asked)) as events:
                async for line in events:
                    await reply.event(line)
            return None

    def _count(self, request_id: str, status: int, code: str, seconds: float) -> None:
        usage, key = self._meter.read(), "" if self._caller is None else self._caller.name
        self._gateway.metrics.ended(self._model, key, status, code, seconds, usage)
        tokens = total(usage).tokens
        _log.info(
            "%s key=%s model=%s status=%d code=%s ms=%.0f tokens=%d",
            *(request_id, key or "-", self._model or "-", status, code or "-", 1000 * seconds, tokens),
        )

    def _log_error(self, request_id: str, told: ApiError, error: Exception) -> None:
        if told.status >= 500 and told is not error:
            # A traceback only for what nobody foresaw.
            _log.error("%s %s: %s", request_id, type(error).__name__, error, exc_info=told.status == 500)


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await the work, and cancel it when the client leaves.

    Raises:
        ClientGone: the client left.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def create_app(config: GatewayConfig) -> FastAPI:
    """Build the application of a gateway; `app.state.gateway` is the gateway.

    Args:
        config: its configuration.

    Raises:
        ConfigurationError: as `Gateway`.
    """
    gateway, started = Gateway(config), int(time.time())
    variable = config.server.metrics_key_env
    metrics_key = None if variable is None else secret_of(variable, "[server] metrics_key_env")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = FastAPI(title="amc-agents gateway", lifespan=lifespan, openapi_url=None)
    app.state.gateway = gateway
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _api_error)

    @app.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return Exchange(gateway)

    @app.get("/v1/models")
    async def models(request: Request) -> Any:
        return plain_models(gateway.models(gateway.keys.caller(request.headers.get("authorization"))), started)

    @app.get("/v1/models/{model:path}")
    async def model(model: str, request: Request) -> Any:
        listed = gateway.models(gateway.keys.caller(request.headers.get("authorization")))
        if model not in listed:
            raise no_such_model(model, listed)
        return plain_model(model, started)

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        reachable = {} if gateway.draining else await gateway.reachable()
        is_ready = any(reachable.values())
        told = {"ready": is_ready, "stopping": gateway.draining, "upstreams": reachable}
        return JSONResponse(told, status_code=200 if is_ready else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        wanted = None if metrics_key is None else f"Bearer {metrics_key.get_secret_value()}".encode()
        if wanted is not None and not hmac.compare_digest(given, wanted):
            raise ApiError(401, "the metrics need the header Authorization: Bearer KEY", code="invalid_api_key")
        return PlainTextResponse(gateway.metrics_text(), media_type=PROMETHEUS)

    return app


async def _api_error(request: Request, error: Exception) -> Response:
    told = as_api_error(error)
    return JSONResponse(told.body, status_code=told.status, headers=told.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"{request.url.path} does not exist here: the gateway serves /v1/chat/completions and /v1/models"
    else:
        message = f"{request.method} {request.url.path}: {error.detail}"
    body = ApiError(error.status_code, message, code="not_found" if error.status_code == 404 else None).body
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
