"""The messages of a model call: attributes of the GenAI conventions, of OpenInference, or of older OpenLLMetry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage

from amc_agents.operations.importing.runs import UnreadableRecord
from amc_agents.operations.importing.sources.messages import messages_of
from amc_agents.operations.importing.sources.otlp import Span


def is_model_call(span: Span) -> bool:
    """Return whether a span is a chat with a model."""
    attributes = span.attributes
    return (
        attributes.get("gen_ai.operation.name") in ("chat", "generate_content")
        or attributes.get("openinference.span.kind") == "LLM"
        or attributes.get("llm.request.type") == "chat"
        or any(f"{prefix}.0.role" in attributes for prefix, _ in _NUMBERED)
    )


def messages_of_call(span: Span) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return what a model was given and what it answered; the answer of a failed call is empty.

    Raises:
        UnreadableRecord: the span holds no messages, or they have another form.
    """
    try:
        given, answer = _logged(span.attributes)
    except UnreadableRecord:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableRecord(f"the messages of a model call have an unknown form ({type(error).__name__})") from None
    if not given:
        raise UnreadableRecord(
            "a model call without its messages: switch on the capture of message content in the agent's instrumentation"
        )
    if len(answer) > 1:
        raise UnreadableRecord("a model call with several answers: it is unknown which of them went on")
    return messages_of(given), messages_of(answer) if answer else []


def _logged(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    if "gen_ai.input.messages" in attributes:
        given, answer = (_parsed(attributes.get(f"gen_ai.{side}.messages")) or [] for side in ("input", "output"))
        return [_genai(each) for each in given], [_genai(each) for each in answer]
    for prompts, completions in _NUMBERED:
        if given := _messages(attributes, prompts):
            answer = [{"role": "assistant"} | each for each in _messages(attributes, completions)]
            return [_openllmetry(each) for each in given], [_openllmetry(each) for each in answer]
    sides = (_messages(attributes, f"llm.{side}_messages") for side in ("input", "output"))
    given, answer = ([_openinference(each["message"]) for each in side] for side in sides)
    return given, answer


def _genai(message: Mapping[str, Any]) -> dict[str, Any]:
    return dict(message) if "content" in message else {"role": message["role"], "parts": message["parts"]}


def _openinference(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = [{"type": "text", **part["message_content"]} for part in message.get("contents") or ()]
    return {
        **{name: message[name] for name in ("role", "tool_call_id", "name") if name in message},
        "content": message.get("content") or parts or "",
        "tool_calls": [call["tool_call"] for call in message.get("tool_calls") or ()],
    }


def _openllmetry(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message whose parts, if it has any, are JSON in its text."""
    content = message.get("content")
    if isinstance(content, str) and content.startswith("[{"):
        try:
            parts = json.loads(content)
        except ValueError:
            parts = content
        content = parts if all(isinstance(part, Mapping) and "type" in part for part in parts) else content
    return {**message, "content": content}


def _messages(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return messages that are a list, JSON, or attributes with numbered names, such as `prefix.0.message.role`."""
    if prefix in attributes:
        return list(_parsed(attributes[prefix]) or ())
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(f"{prefix}."):
            *path, last = name.removeprefix(f"{prefix}.").split(".")
            at = tree
            for part in path:
                at = at.setdefault(part, {})
            at[last] = value
    return [_listed(tree[number]) for number in sorted(tree, key=int)]


def _listed(tree: Any) -> Any:
    """Turn mappings with numbered names into lists."""
    if not isinstance(tree, Mapping):
        return tree
    if tree and all(name.isdigit() for name in tree):
        return [_listed(tree[number]) for number in sorted(tree, key=int)]
    return {name: _listed(value) for name, value in tree.items()}


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise UnreadableRecord(
            "the messages of a model call are not JSON: an exporter that limits attributes has cut them (raise "
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)"
        ) from None


_NUMBERED = (("gen_ai.prompt", "gen_ai.completion"), ("llm.prompts", "llm.completions"))
"""Prefixes of the messages of OpenLLMetry before the GenAI conventions."""
