"""The attributes of spans: of OpenTelemetry's GenAI conventions, of OpenInference, and our own (`amc.`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from amc_agents.quoting import masked
from amc_agents.runtime.metering import Answer
from amc_agents.types import plain
from amc_agents.usage import Usage

Attributes = dict[str, Any]

KIND = "openinference.span.kind"
OPERATION = "gen_ai.operation.name"
NODE, PARENT_NODE, NODE_NAME = "graph.node.id", "graph.node.parent_id", "graph.node.name"
_ROLES = {"human": "user", "ai": "assistant"}
_NAMES = ("type", "critic", "critic_from")
"""Texts of a record that name settings, and contain no content."""
MOST_TEXT = 100_000
"""Maximum number of characters of an attribute with content."""


def own(values: Mapping[str, Any]) -> Attributes:
    """Return our own attributes: `amc.` before each name, without None."""
    return {f"amc.{name}": value for name, value in values.items() if value is not None}


class Asked(NamedTuple):
    """What spans need of a request's metadata.

    The rest is let go at once: what outlives its request costs the agents more than the calls of the tracer do.
    """

    provider: str | None
    model: str | None
    temperature: float | None
    max_tokens: int | None


class Told(NamedTuple):
    """What spans need of an answer's metadata; the rest is let go, as for `Asked`."""

    model: str | None
    reason: str | None
    usage: Usage


def asked(metadata: Mapping[str, Any]) -> Asked:
    """Read the metadata of a request."""
    read = metadata.get
    return Asked(read("ls_provider"), read("ls_model_name"), read("ls_temperature"), read("ls_max_tokens"))


def told(answer: Answer) -> Told:
    """Read the metadata of an answer."""
    read = answer.facts.get
    return Told(read("model_name"), read("finish_reason") or read("stop_reason"), answer.usage)


def of_request(request: Asked, role: str) -> Attributes:
    """Return the attributes of a request."""
    return _known(
        {
            OPERATION: "chat",
            KIND: "LLM",
            "gen_ai.provider.name": request.provider,
            "gen_ai.request.model": request.model,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.max_tokens": request.max_tokens,
            "llm.provider": request.provider,
            "llm.model_name": request.model,
            "amc.role": role,
        }
    )


def of_answer(answer: Told) -> Attributes:
    """Return the model, the tokens and the reasons for the end of an answer."""
    return _known(
        {
            "gen_ai.response.model": answer.model,
            "gen_ai.response.finish_reasons": [str(answer.reason)] if answer.reason else None,
            **({} if answer.usage.missing else _tokens(answer.usage)),
        }
    )


def _tokens(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "llm.token_count.prompt": usage.input_tokens,
        "llm.token_count.completion": usage.output_tokens,
        "llm.token_count.total": usage.tokens,
    }


def of_record(record: Mapping[str, Any], *, content: bool) -> Attributes:
    """Return a record's numbers and, if content is captured, all of it as JSON."""
    values = {name: value for name, value in record.items() if _is_number(value) or _are_numbers(value)}
    values |= {name: masked(str(record[name])) for name in _NAMES if record.get(name) is not None}
    values |= {f"usage.{name}": count for name, count in usage_counts(record.get("usage") or {}).items()}
    return {**own(values), **(text("output.value", plain(record)) if content else {})}


def usage_counts(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return role -> counts as flat names, such as `policy.input_tokens`."""
    counts = {role: used.as_plain() if isinstance(used, Usage) else used for role, used in usage.items()}
    return {f"{role}.{name}": count for role, each in counts.items() for name, count in each.items()}


def text(name: str, value: Any) -> Attributes:
    """Return an attribute with content, without secrets and of limited length."""
    written = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return {name: plain(masked(written)[:MOST_TEXT])}


def of_conversation(messages: Sequence[BaseMessage]) -> Attributes:
    """Return the messages that a model was given, and the last text."""
    last = messages[-1].text if messages else ""
    return {**text("gen_ai.input.messages", [_message(each) for each in messages]), **text("input.value", str(last))}


def of_answers(response: LLMResult) -> Attributes:
    """Return the messages that a model wrote, and the first text."""
    answers = [candidate for batch in response.generations for candidate in batch]
    parts = [
        _message(each.message) if isinstance(each, ChatGeneration) else _text_message("assistant", each.text)
        for each in answers
    ]
    first = answers[0].text if answers else ""
    return {**text("gen_ai.output.messages", parts), **text("output.value", first)}


def of_prompt(prompt: str) -> Attributes:
    """Return the prompt of a plain-text model."""
    return {**text("gen_ai.input.messages", [_text_message("user", prompt)]), **text("input.value", prompt)}


def _message(message: BaseMessage) -> Attributes:
    role = _ROLES.get(message.type, message.type)
    if isinstance(message, ToolMessage):
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": str(message.text)}
        return {"role": role, "parts": [part]}
    written = _text_message(role, str(message.text))
    if isinstance(message, AIMessage):
        written["parts"] += [
            {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]}
            for call in message.tool_calls
        ]
    return written


def _text_message(role: str, content: str) -> Attributes:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _known(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _are_numbers(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(type(each) is type(value[0]) for each in value)
        and (_is_number(value[0]))
    )
