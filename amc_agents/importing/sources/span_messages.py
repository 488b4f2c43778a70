"""The messages of a model call: attributes of the GenAI conventions, or of OpenInference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage

from amc_agents.importing.runs import UnreadableRecord
from amc_agents.importing.sources.messages import messages_of
from amc_agents.importing.sources.otlp import Span


def is_model_call(span: Span) -> bool:
    """Return whether a span is a chat with a model."""
    attributes = span.attributes
    return attributes.get("gen_ai.operation.name") in ("chat", "generate_content") or (
        attributes.get("openinference.span.kind") == "LLM"
    )


def messages_of_call(span: Span) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return what a model was given and what it answered; the answer of a failed call is empty.

    Raises:
        UnreadableRecord: the span holds no messages, or they have another form.
    """
    try:
        given, answer = _logged(span.attributes)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableRecord(f"the messages of a model call have an unknown form ({type(error).__name__})") from None
    if not given:
        raise UnreadableRecord(
            "a model call without its messages: switch on the capture of message content in the agent's instrumentation"
        )
    if len(answer) > 1:
        raise UnreadableRecord("a model call with several answers: it is unknown which of them went on")
    return messages_of(given), messages_of(answer) if answer else []


def _logged(attributes: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if "openinference.span.kind" in attributes:
        return _openinference(attributes, "llm.input_messages"), _openinference(attributes, "llm.output_messages")
    given, answer = (_parsed(attributes.get(f"gen_ai.{side}.messages")) for side in ("input", "output"))
    return (
        [message for each in given or () for message in _genai(each)],
        [message for each in answer or () for message in _genai(each)],
    )


def _genai(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert a message whose parts are texts, reasoning, tool calls and tool answers; an answer is its own message."""
    text, reasoning = "", ""
    calls, answers = [], []
    for part in message["parts"]:
        match part["type"]:
            case "text":
                text += part["content"]
            case "reasoning":
                reasoning += part["content"]
            case "tool_call":
                arguments = _parsed(part.get("arguments")) or {}
                calls.append({"name": part["name"], "args": arguments, "id": part.get("id"), "type": "tool_call"})
            case "tool_call_response":
                content = part["response"] if "response" in part else part.get("result")
                content = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
                answers.append({"role": "tool", "content": content, "tool_call_id": part.get("id") or ""})
    if answers:
        return answers
    converted: dict[str, Any] = {"role": message["role"], "content": text}
    if calls:
        converted["tool_calls"] = calls
    if reasoning:
        converted["reasoning_content"] = reasoning
    return [converted]


def _openinference(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Convert messages whose fields are attributes with numbered names, such as `prefix.0.message.role`."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(f"{prefix}."):
            *path, last = name.removeprefix(f"{prefix}.").split(".")
            at = tree
            for part in path:
                at = at.setdefault(part, {})
            at[last] = value
    return [_openinference_message(tree[number]["message"]) for number in sorted(tree, key=int)]


def _openinference_message(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = message.get("contents", {})
    texts = [parts[number]["message_content"].get("text") or "" for number in sorted(parts, key=int)]
    converted = {"role": message["role"], "content": message.get("content") or "".join(texts)}
    logged = message.get("tool_calls", {})
    calls = [logged[number]["tool_call"] for number in sorted(logged, key=int)]
    if calls:
        converted["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": {"arguments": "{}", **call["function"]}}
            for call in calls
        ]
    if "tool_call_id" in message or message["role"] == "tool":
        converted["tool_call_id"] = message.get("tool_call_id") or ""
    return converted


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
