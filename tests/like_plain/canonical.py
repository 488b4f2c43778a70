"""Values in a form in which two runs can be compared: without ids, times and object identities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.outputs import LLMResult
from langgraph.types import Command, GraphOutput, Interrupt
from pydantic import BaseModel

_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00")
_LEFT_OUT = ("remaining_steps",)
"""Keys whose values follow from the recursion limit."""


def canonical(value: Any) -> Any:
    """Return a value of tuples and plain values."""
    if isinstance(value, BaseMessage):
        return _message(value)
    if isinstance(value, Interrupt):
        return "interrupt", canonical(value.value)
    if isinstance(value, GraphOutput):
        return "output", canonical(value.value), canonical(value.interrupts)
    if isinstance(value, Command):
        return "command", canonical(value.update), canonical(value.goto), canonical(value.graph)
    if isinstance(value, LLMResult):
        return tuple(canonical(getattr(one, "message", one.text)) for some in value.generations for one in some)
    if isinstance(value, BaseModel):
        return type(value).__name__, *((name, canonical(getattr(value, name))) for name in type(value).model_fields)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, *((field.name, canonical(getattr(value, field.name))) for field in fields(value))
    if isinstance(value, Mapping):
        items = [(str(key), canonical(item)) for key, item in value.items() if key not in _LEFT_OUT]
        return "dict", *sorted(items, key=repr)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *map(canonical, value)
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, *sorted(map(canonical, value), key=repr)
    if isinstance(value, str):
        return _TIME.sub("<time>", _ID.sub("<id>", value))
    return value


def _message(message: BaseMessage) -> tuple[Any, ...]:
    if isinstance(message, AIMessageChunk):
        message = message_chunk_to_message(message)
    kept = ("content", "name", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "artifact",
            "additional_kwargs", "response_metadata", "usage_metadata")  # fmt: skip
    parts = ((name, canonical(getattr(message, name, None))) for name in kept)
    return message.type, *(part for part in parts if part[1] not in (None, "", ("list",), ("dict",)))


def unnamed(value: Any) -> Any:
    """Return a canonical value with messages of models without their names."""
    if not isinstance(value, tuple):
        return value
    kept = value if value[:1] != ("ai",) else [part for part in value if part[0] != "name"]
    return tuple(map(unnamed, kept))


def merged(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return streamed messages with the chunks of each added up, and each message once."""
    whole: dict[Any, BaseMessage] = {}
    for number, message in enumerate(messages):
        key = message.id or number
        known = whole.get(key)
        if isinstance(message, AIMessageChunk) and isinstance(known, AIMessageChunk):
            whole[key] = known + message
        elif known is None:
            whole[key] = message
    return list(whole.values())
