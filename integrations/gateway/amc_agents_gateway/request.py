"""Read a request for a chat completion: only what the gateway needs is checked, and the rest is passed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive

from amc_agents.quoting import quoted
from amc_agents_gateway.errors import ApiError, ClientGone, bad_request


@dataclass(frozen=True)
class Asked:
    """A request for a chat completion."""

    model: str
    """Name of a model of the gateway."""
    body: Mapping[str, Any]
    """The request as it came, without the gateway's own field `amc`."""
    critic: str | None = None
    """The critic that it chooses: a name of the configuration."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def stream(self) -> bool:
        """True if the answer is to come as a stream."""
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """True if a stream is to end with the usage."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def n(self) -> int:
        """Number of requested answers."""
        return self.body.get("n") or 1

    @property
    def max_tokens(self) -> int | None:
        """Limit of each answer."""
        limit: int | None = self.body.get("max_completion_tokens") or self.body.get("max_tokens")
        return limit


def read_request(content: bytes, max_n: int, max_messages: int) -> Asked:
    """Read the JSON of a request.

    Args:
        content: the body.
        max_n: the largest `n` allowed.
        max_messages: most messages, parts and tool calls of all messages, and tools.

    Raises:
        ApiError: 400; the message names the parameter.
    """
    try:
        plain = json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise bad_request("expected a body in JSON, got something else", code="invalid_json") from error
    if not isinstance(plain, dict):
        raise bad_request("expected a JSON object with model and messages", code="invalid_json")
    body = {name: value for name, value in plain.items() if name != "amc"}
    _check(body, max_n)
    _check_size(body, max_messages)
    return Asked(body["model"], body, _critic(plain.get("amc")))


async def read_body(receive: Receive, declared: str | None, most: int, timeout_s: float) -> bytes:
    """Receive the body of a request.

    Args:
        receive: the connection.
        declared: the header Content-Length.
        most: the largest number of bytes allowed.
        timeout_s: time for the client, in seconds.

    Raises:
        ApiError: 413, it is too long; 408, it took too long.
        ClientGone: the client left.
    """
    if declared is not None and declared.isdecimal() and int(declared) > most:
        raise _too_long(most)
    pieces: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(timeout_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                pieces.append(message.get("body", b""))
                size, more = size + len(pieces[-1]), message.get("more_body", False)
                if size > most:
                    raise _too_long(most)
    except TimeoutError:
        raise ApiError(408, f"the request did not arrive within {timeout_s:g} s", code="request_timeout") from None
    return b"".join(pieces)


def _too_long(most: int) -> ApiError:
    return ApiError(413, f"the request is longer than {most:,} bytes", code="request_too_large")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _critic(extension: Any) -> str | None:
    if extension is None:
        return None
    if not isinstance(extension, dict) or set(extension) - {"critic"}:
        raise bad_request(f'amc takes {{"critic": NAME}}, got {quoted(extension, 80)}', "amc")
    critic = extension.get("critic")
    if critic is not None and not isinstance(critic, str):
        raise bad_request(f"amc.critic takes the name of a critic, got {quoted(critic, 80)}", "amc.critic")
    return critic


def _check(body: Mapping[str, Any], max_n: int) -> None:
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise bad_request(f"expected the name of a model, got {quoted(body.get('model'), 80)}", "model")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request(f"expected a list of messages, got {quoted(messages, 80)}", "messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise bad_request(f"expected a message with a role, got {quoted(message, 80)}", f"messages.{i}")
    for name, (expected, valid) in _OPTIONAL.items():
        if body.get(name) is not None and not valid(body[name]):
            raise bad_request(f"{name} takes {expected}, got {quoted(body[name], 80)}", name)
    if (body.get("n") or 1) > max_n:
        raise bad_request(f"n is at most {max_n} here, got {body['n']}", "n")
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        raise bad_request("expected max_tokens or max_completion_tokens, got both", "max_tokens")
    if body.get("stream_options") is not None and not body.get("stream"):
        raise bad_request("stream_options needs stream=true", "stream_options")


def _check_size(body: Mapping[str, Any], most: int) -> None:
    messages = body["messages"]
    for name, items in (
        ("messages", len(messages)),
        ("messages", sum(_length(message.get("content")) + _length(message.get("tool_calls")) for message in messages)),
        ("tools", _length(body.get("tools"))),
    ):
        if items > most:
            what = "messages, or parts and tool calls in them" if name == "messages" else "tools"
            raise bad_request(f"expected at most {most:,} {what}, got {items:,}", name, "too_many_items")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_tool(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("function", {}), dict)


_COUNT = ("a whole number from 1", _is_count)
_OPTIONAL: Mapping[str, Any] = {
    "n": _COUNT,
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "stream": ("true or false", lambda value: type(value) is bool),
    "stream_options": ("an object", lambda value: isinstance(value, dict)),
    "tools": ("a list of objects", lambda value: isinstance(value, list) and all(map(_is_tool, value))),
    "modalities": ("a list", lambda value: isinstance(value, list)),
    "logprobs": ("true or false", lambda value: type(value) is bool),
}
