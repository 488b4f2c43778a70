"""The gateway's HTTP application."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.errors import ApiError, as_api_error, no_such_model
from amc_agents_gateway.exchange import Exchange
from amc_agents_gateway.gateway import Gateway, plain_model, plain_models
from amc_agents_gateway.keys import secret_of

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
