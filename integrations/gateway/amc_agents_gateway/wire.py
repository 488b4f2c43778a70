"""OpenAI's JSON: read a request for a chat completion, and convert between JSON and LangChain's messages.

Only what the gateway needs of a request is checked; what LangChain does not know of a message is passed on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import default_tool_parser, invalid_tool_call
from starlette.types import Receive

from amc_agents.quoting import excerpt, quoted
from amc_agents.usage import OPENAI_COUNTS, Usage, reported_usage
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


_RAW, _CHOICE = "raw_message", "raw_choice"
"""Keys of `response_metadata`."""


def to_messages(plain: Sequence[Mapping[str, Any]]) -> list[BaseMessage]:
    """Convert a conversation; each message keeps its JSON, which `to_plain` sends upstream.

    Raises:
        ApiError: 400; a message is not valid.
    """
    messages = []
    for i, raw in enumerate(plain):
        content = raw.get("content")
        if isinstance(content, list) and not all(map(_is_part, content)):
            raise bad_request(f"message {i} is not valid: a part has no type or no content", f"messages.{i}.content")
        try:
            message = _assistant(raw) if raw["role"] == "assistant" else convert_to_messages([_tolerant(raw)])[0]
        except (ValueError, TypeError, LookupError, AttributeError, NotImplementedError) as error:
            reason = excerpt(f"{type(error).__name__}: {error}")
            raise bad_request(f"message {i} is not valid: {reason}", f"messages.{i}") from error
        messages.append(_with(message, _RAW, dict(raw)))
    return messages


def to_plain(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Convert messages to JSON: those of a client as they came, but for a content that a method has changed."""
    return [_plain(message) for message in messages]


def candidate(choice: Mapping[str, Any], usage: UsageMetadata | None) -> AIMessage:
    """Convert a choice of an upstream; the message keeps the choice, for `to_choice`."""
    message = _assistant(choice.get("message") or {})
    message.usage_metadata = usage
    known = {name: choice[name] for name in ("logprobs", "finish_reason") if choice.get(name) is not None}
    message.response_metadata = {**known, _CHOICE: dict(choice)}
    return message


def to_choice(message: AIMessage, index: int) -> dict[str, Any]:
    """Return the choice that a message came from, with the content that a method may have given it."""
    choice = message.response_metadata[_CHOICE]
    raw = choice["message"]
    if message.content != _content(raw):
        raw = {**raw, "content": message.content}
    return {**choice, "message": raw, "index": index}


def usage_metadata(answer: Mapping[str, Any]) -> UsageMetadata | None:
    """Return an answer's usage in LangChain's form; None: it reports none."""
    usage = reported_usage(answer.get("usage"), OPENAI_COUNTS)
    if usage.missing:
        return None
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.tokens,
        input_token_details={"cache_read": usage.cached_tokens},
    )


def plain_usage(usage: Usage) -> dict[str, Any]:
    """Return a usage in OpenAI's form."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def event(data: Any) -> bytes:
    """Return an event of a stream, without the empty line that ends it."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode())


def chunks(answer: Mapping[str, Any], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """Yield a whole answer as the chunks of a stream: per choice its message, then the reason why it ended.

    Args:
        answer: the answer.
        with_usage: end with a chunk of the usage. The field `amc` comes with that chunk, or else with the last choice.
    """
    common = {"id": answer["id"], "object": "chat.completion.chunk"}
    common |= {"created": answer["created"], "model": answer["model"]} | ({"usage": None} if with_usage else {})
    last = len(answer["choices"]) - 1
    for choice in answer["choices"]:
        index = {"index": choice["index"]}
        delta = {**index, "delta": _delta(choice["message"]), "finish_reason": None}
        if choice.get("logprobs") is not None:
            delta["logprobs"] = choice["logprobs"]
        yield {**common, "choices": [delta]}
        ended = {**common, "choices": [{**index, "delta": {}, "finish_reason": choice.get("finish_reason")}]}
        yield ended if with_usage or choice["index"] < last else {**ended, "amc": answer["amc"]}
    if with_usage:
        yield {**common, "choices": [], "usage": answer["usage"], "amc": answer["amc"]}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    delta = {name: value for name, value in message.items() if value is not None}
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    return {"role": "assistant", **delta}


def _assistant(raw: Mapping[str, Any]) -> AIMessage:
    # Unlike LangChain's conversion, this takes calls whose arguments are no JSON, which models do write.
    parsed, invalid = default_tool_parser([_tolerant_call(call) for call in raw.get("tool_calls") or []])
    calls = [call for call in parsed if isinstance(call["args"], dict)]
    invalid += [
        invalid_tool_call(name=call["name"], args=json.dumps(call["args"]), id=call["id"], error="no object")
        for call in parsed
        if call not in calls
    ]
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    more = {"reasoning_content": reasoning} if isinstance(reasoning, str) else {}
    return AIMessage(_content(raw), tool_calls=calls, invalid_tool_calls=invalid, additional_kwargs=more)


def _is_part(part: Any) -> bool:
    """Whether LangChain can read a part of a message; it does so after `to_messages`."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    if part["type"] == "input_audio":
        audio = part.get("input_audio")
        return isinstance(audio, dict) and all(_is_text(audio.get(name)) for name in ("data", "format"))
    if part["type"] == "file":
        file = part.get("file")
        return isinstance(file, dict) and any(_is_text(file.get(name)) for name in ("file_data", "file_id"))
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _tolerant_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call as LangChain reads it: some clients send arguments as an object, or omit them or the id."""
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    return {**call, "id": call.get("id") or "", "function": {**function, "arguments": arguments}}


def _tolerant(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as LangChain reads it: a tool's answer need not say which call it answers."""
    return {**raw, "tool_call_id": raw.get("tool_call_id") or ""} if raw["role"] == "tool" else dict(raw)


def _content(raw: Mapping[str, Any]) -> Any:
    return raw.get("content") or ""


def _plain(message: BaseMessage) -> dict[str, Any]:
    raw = message.response_metadata.get(_RAW)
    if raw is None:
        plain: Any = convert_to_openai_messages(message)
        return dict(plain)
    content, given = message.content, _content(raw)
    if content != given and isinstance(content, list) and isinstance(given, list):
        # LangChain rewrites files and audio in its own form, part by part; methods append texts.
        content = [*given, *content[len(given) :]]
    return dict(raw) if content == given else {**raw, "content": content}


def _with(message: BaseMessage, key: str, value: Any) -> BaseMessage:
    return message.model_copy(update={"response_metadata": {**message.response_metadata, key: value}})


DONE = event(b"[DONE]")
"""The last event of a stream."""
