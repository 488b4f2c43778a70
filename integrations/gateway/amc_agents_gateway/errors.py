"""Errors in the form of OpenAI's API: a status, and `{"error": {"message", "type", "param", "code"}}`.

    ApiError            what the client is told
    └── UpstreamError   an upstream failed or refused a request

`as_api_error` converts every other exception. What a critic's server or an unexpected exception says is for the log
only, because a client need not be entitled to read it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from amc_agents.errors import (
    AmcError,
    ConfigurationError,
    CriticError,
    DecisionError,
    PromptTooLong,
    UnboundedRequest,
)
from amc_agents.quoting import excerpt, listed, quoted

INVALID, SERVER, LIMIT, QUOTA = "invalid_request_error", "server_error", "rate_limit_error", "insufficient_quota"
"""Values of `type`, by which some clients distinguish errors of the same status."""


class ApiError(AmcError):
    """An error as the client receives it.

    Args:
        status: the HTTP status.
        message: what was expected, what came, what to do.
        type: kind of the error.
        code: name of the error for programs.
        param: the parameter of the request that is wrong.
        retry_after: seconds after which the request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.status, self.message, self.type, self.code, self.param = status, message, type, code, param
        self.retry_after = retry_after
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return headers


class UpstreamError(ApiError):
    """An upstream failed, or refused a request.

    Args:
        status: the HTTP status for the client.
        message: the message for the client.
        status_code: the HTTP status of the upstream's answer; None: no answer.
        sent: False if the request did not reach the upstream, so that nothing was billed.
        **fields: as for `ApiError`.
    """

    def __init__(
        self, status: int, message: str, *, status_code: int | None = None, sent: bool = True, **fields: Any
    ) -> None:
        super().__init__(status, message, **fields)
        self.status_code, self.sent = status_code, sent


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a request that is not valid."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error for a valid parameter that a model of this gateway cannot honour."""
    return bad_request(reason, param, "unsupported_parameter")


def no_such_model(model: str, models: list[str]) -> ApiError:
    """Return the error for a model that the gateway lacks, or that the key may not use."""
    message = f"the model {quoted(model, 80)} does not exist, or your key may not use it. You may use {listed(models)}"
    return ApiError(404, message, param="model", code="model_not_found")


def stopping() -> ApiError:
    """Return the error for a request that the gateway cannot answer any more."""
    message = "the gateway is stopping: send the request again"
    return ApiError(503, message, type=SERVER, code="shutting_down", retry_after=1.0)


def upstream_refused(name: str, status: int, answer: Mapping[str, Any], retry_after: float | None) -> UpstreamError:
    """Convert an upstream's error.

    The client can act on a 400 or 429. Everything else is a fault between the gateway and its upstream: a 401, for
    example, is about the gateway's key and not about the client's.

    Args:
        name: name of the upstream.
        status: its HTTP status.
        answer: its JSON answer; empty if it is not JSON.
        retry_after: seconds that it asks the client to wait.
    """
    told = answer.get("error") if isinstance(answer.get("error"), Mapping) else answer
    assert isinstance(told, Mapping)
    text = excerpt(str(told.get("message") or told.get("detail") or f"it answered HTTP {status}"), 400)
    if status == 429:
        fields: dict[str, Any] = {"type": LIMIT, "code": "upstream_rate_limit", "retry_after": retry_after or 1.0}
        return UpstreamError(429, f"the upstream {name} refuses further requests: {text}", status_code=429, **fields)
    if status in (400, 413, 422):
        code, param = told.get("code"), told.get("param")
        return UpstreamError(
            413 if status == 413 else 400,
            text,
            status_code=status,
            code=code if isinstance(code, str) else None,
            param=param if isinstance(param, str) else None,
        )
    reason = f"the upstream {name} answered HTTP {status}. Details are in the gateway's log"
    return UpstreamError(502, reason, status_code=status, type=SERVER, code="upstream_error")


def as_api_error(error: BaseException) -> ApiError:
    """Convert an exception of a request to what the client is told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UnboundedRequest):
        return bad_request(str(error), "max_tokens")
    if isinstance(error, PromptTooLong):
        return bad_request("the conversation is too long for the critic", "messages", "context_length_exceeded")
    if isinstance(error, CriticError):
        message = "the critic, or a model in its service, failed. Details are in the gateway's log"
        return ApiError(502, message, type=SERVER, code="critic_failed")
    if isinstance(error, DecisionError):
        return ApiError(502, excerpt(str(error), 400), type=SERVER, code="no_decision")
    if isinstance(error, ConfigurationError):
        return bad_request(excerpt(str(error), 400))
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return ApiError(504, "the request took longer than the gateway allows", type=SERVER, code="timeout")
    return ApiError(500, "an unexpected error: details are in the gateway's log", type=SERVER, code="internal_error")
