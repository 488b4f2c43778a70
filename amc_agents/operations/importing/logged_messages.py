"""Convert logged messages, in the forms of the usual interfaces, to those that an agent's state holds.

Read are OpenAI's chat and Responses forms, Anthropic's content blocks, and LangChain's own messages. What a form holds
beside text, reasoning and tool calls (images, sound, files) is left out, as no critic reads it at run time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)

from amc_agents.operations.importing.logged_runs import UnreadableRecord


def messages_of(logged: Any) -> list[BaseMessage]:
    """Convert logged messages.

    Raises:
        UnreadableRecord: they have another form.
    """
    if not isinstance(logged, Sequence) or isinstance(logged, str) or not logged:
        raise UnreadableRecord(f"expected a list of messages, got {type(logged).__name__}")
    logged = [item for message in logged for item in _items_of(message)]
    calls = _Calls()
    names: set[str] = set()
    converted: list[BaseMessage] = []
    try:
        for message in logged:
            for each in _read(message):
                if each.id in names:
                    each.id = None  # an id that names several messages names none
                names.update({each.id} if each.id else ())
                converted.append(calls.named(each))
    except UnreadableRecord:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, NotImplementedError) as error:
        # The error's own text may quote the conversation.
        raise UnreadableRecord(
            f'a message has an unknown form ({type(error).__name__}): expected {{"role": ..., "content": ...}}'
        ) from None
    return _joined(converted) if any(map(_is_item, logged)) else converted


def check_calls(messages: Sequence[BaseMessage]) -> None:
    """Refuse a conversation from which messages are missing.

    Raises:
        UnreadableRecord: a tool answers a call that no message makes.
    """
    called: set[str | None] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            invalid = message.additional_kwargs.get("invalid_calls", [])
            called.update(call.get("id") for call in (*message.tool_calls, *invalid))
        elif isinstance(message, ToolMessage) and message.tool_call_id not in called:
            raise UnreadableRecord(
                "a tool answers a call that is not in the log: the conversation was shortened, so steps are lost. Log "
                "all messages, or import the agent's checkpointer"
            )


@dataclass
class _Calls:
    """Gives ids to calls that were logged without one; their answers follow in the same order."""

    waiting: list[tuple[str, str]] = field(default_factory=list)
    """(id, name of the tool) of the calls that have no answer yet."""
    made: int = 0

    def named(self, message: BaseMessage) -> BaseMessage:
        if isinstance(message, AIMessage):
            for call in (*message.tool_calls, *message.additional_kwargs.get("invalid_calls", ())):
                if not call.get("id"):
                    self.made += 1
                    call["id"] = f"call-{self.made}"
                    self.waiting.append((call["id"], call["name"]))
        elif isinstance(message, ToolMessage) and not message.tool_call_id and self.waiting:
            same = (at for at, (_, name) in enumerate(self.waiting) if name == message.name)
            message.tool_call_id, _ = self.waiting.pop(next(same, 0))
        return message


@dataclass
class _Content:
    """What a message consists of."""

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    answers: list[ToolMessage] = field(default_factory=list)

    @classmethod
    def of(cls, content: Any) -> _Content:
        """Read the content of a message: a text, or parts."""
        read = cls()
        if isinstance(content, str) or content is None:
            read.text = content or ""
            return read
        if not isinstance(content, Sequence):
            raise UnreadableRecord(f"the content of a message is a {type(content).__name__}: expected text or parts")
        for part in content:
            read._add(part)
        return read

    def _add(self, part: Any) -> None:
        if isinstance(part, str):
            self.text += part
            return
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text":
                self.text += part.get("text") or part.get("content") or ""
            case "refusal":
                self.text += part.get("refusal") or ""
            case "thinking":
                self._think(part.get("thinking"))
            case "reasoning":
                readable = None if part.get("redacted") else part.get("reasoning") or part.get("content")
                thought = readable or part.get("summary")
                self._think(_Content.of(thought).text)
            case "tool_use":
                self.calls.append({"name": part["name"], "args": part.get("input"), "id": part.get("id")})
            case "tool_call":
                self.calls.append(part)
            case "tool_result":
                self.answers.append(_answer(part.get("tool_use_id"), part.get("content")))
            case "tool_call_response":
                answer = part["response"] if "response" in part else part.get("result")
                self.answers.append(_answer(part.get("id"), answer))
            case other if other not in _WITHOUT_TEXT:
                # Only what looks like the name of a type is repeated, not text of the conversation.
                named = f" {other}" if isinstance(other, str) and _NAME.fullmatch(other) else ""
                raise UnreadableRecord(
                    f"a message has a part of the unknown type{named}: expected text, reasoning, tool calls and their "
                    "answers, images, sound or files"
                )

    def _think(self, text: str | None) -> None:
        self.reasoning = "\n".join(filter(None, (self.reasoning, text)))


def _read(message: Any) -> Iterator[BaseMessage]:
    """Yield what a logged message is for an agent: the answers of tools are messages of their own."""
    if not isinstance(message, dict):
        yield from convert_to_messages([message])
        return
    if _is_item(message):
        yield _item(message)
        return
    role, name = message.get("role"), message.get("id") if isinstance(message.get("id"), str) else None
    if role is None:
        yield from convert_to_messages([_langchain(message)])
        return
    given = message["parts"] if "parts" in message else message.get("content")
    if role in ("tool", "function") and not _has_answers(given):
        yield _answer(message.get("tool_call_id"), given, message.get("name"), name)
        return
    content = _Content.of(given)
    match role:
        case "assistant" | "ai" | "model":
            yield _turn(message, content, name)
        case "user" | "human" | "tool" | "function":
            yield from content.answers
            if content.text or not content.answers:
                yield HumanMessage(content.text, id=name)
        case "system" | "developer":
            yield SystemMessage(content.text, id=name)
        case "exit":
            pass  # how mini-swe-agent notes that it stopped
        case _:
            raise UnreadableRecord(
                "a message has an unknown form: expected the role system, developer, user, assistant, tool or function"
            )


def _turn(message: Mapping[str, Any], content: _Content, name: str | None) -> AIMessage:
    logged = [*(message.get("tool_calls") or ()), *filter(None, [message.get("function_call")])]
    # LangChain's messages hold the calls of Anthropic's models twice.
    known = {call.get("id") for call in logged}
    unknown = [call for call in content.calls if not call.get("id") or call["id"] not in known]
    parsed = [_call(call) for call in (*logged, *unknown)]
    reasoning = content.reasoning or message.get("reasoning_content") or message.get("reasoning")
    return _said(
        content.text or message.get("refusal") or "",
        reasoning if isinstance(reasoning, str) else "",
        [call for call in parsed if call["args"] is not None],
        [call for call in parsed if call["args"] is None],
        name,
    )


def _said(text: str, reasoning: str, calls: list[Any], invalid: list[Any], name: str | None) -> AIMessage:
    more: dict[str, Any] = {"invalid_calls": invalid} if invalid else {}
    if reasoning:
        more["reasoning_content"] = reasoning
    return AIMessage(text, tool_calls=calls, additional_kwargs=more, id=name)


def _items_of(message: Any) -> Sequence[Any]:
    """Return the items of an answer of OpenAI's Responses that stands among the messages."""
    whole = isinstance(message, dict) and message.get("object") == "response" and isinstance(message["output"], list)
    return message["output"] if whole else [message]


def _is_item(message: Any) -> bool:
    """Whether it is an item of OpenAI's Responses that is no message."""
    return isinstance(message, dict) and "role" not in message and message.get("type") in _ITEMS


def _item(item: Mapping[str, Any]) -> BaseMessage:
    if item["type"] == "reasoning":
        content = _Content()
        content._add(item)
        return _turn({}, content, None)
    if item["type"] in ("function_call", "custom_tool_call"):
        given = {"arguments": item["arguments"]} if "arguments" in item else {"args": {"__arg1": item["input"]}}
        return _turn({"tool_calls": [{"name": item["name"], "id": item.get("call_id"), **given}]}, _Content(), None)
    return _answer(item.get("call_id"), item.get("output"))


def _joined(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Join the items of a model's answer into one message, as LangChain does."""
    joined: list[BaseMessage] = []
    for message in messages:
        before = joined[-1] if joined else None
        if not isinstance(before, AIMessage) or not isinstance(message, AIMessage):
            joined.append(message)
            continue
        thoughts = (each.additional_kwargs.get("reasoning_content") for each in (before, message))
        invalid = [
            *before.additional_kwargs.get("invalid_calls", ()),
            *message.additional_kwargs.get("invalid_calls", ()),
        ]
        reasoning = "\n".join(filter(None, thoughts))
        more = ({"invalid_calls": invalid} if invalid else {}) | ({"reasoning_content": reasoning} if reasoning else {})
        calls = [*before.tool_calls, *message.tool_calls]
        joined[-1] = AIMessage(before.text + message.text, tool_calls=calls, additional_kwargs=more, id=before.id)
    return joined


def _has_answers(content: Any) -> bool:
    kinds = ("tool_result", "tool_call_response")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") in kinds for part in content
    )


def _answer(call: Any, content: Any, tool: Any = None, name: str | None = None) -> ToolMessage:
    if not isinstance(content, str | None) and not _are_parts(content):
        content = json.dumps(content, ensure_ascii=False)
    return ToolMessage(_Content.of(content).text, tool_call_id=str(call or ""), name=tool, id=name)


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content)


def _call(logged: Any) -> dict[str, Any]:
    """Parse a call as LangChain's models do: the arguments of a call are None if they are not JSON."""
    function = logged.get("function") or logged.get("custom") or logged
    if isinstance(function, str):  # inspect_ai writes the arguments beside the name
        function = {**logged, "name": function}
    given = next((function[key] for key in ("args", "arguments", "input") if function.get(key) is not None), None)
    if "custom" in logged:
        given = {"__arg1": given}
    try:
        # Some exporters encode the text of the arguments once more.
        for _ in range(2):
            given = json.loads(given, strict=False) if isinstance(given, str) and given.strip() else given or {}
    except (ValueError, RecursionError):
        given = None
    if given is not None and not isinstance(given, Mapping):
        raise UnreadableRecord(f"the arguments of a tool call are a {type(given).__name__}: expected an object")
    args = None if given is None else dict(given)
    return {"name": function["name"], "args": args, "id": logged.get("id"), "type": "tool_call"}


def _langchain(message: Mapping[str, Any]) -> dict[str, Any]:
    # Exporters write null for fields that a message lacks.
    plain = {key: value for key, value in message.items() if value is not None}
    if isinstance(plain.get("type"), str):
        plain["type"] = _CHUNKS.get(plain["type"], plain["type"])
    if isinstance(plain.get("tool_calls"), list):
        parsed = [_call(call) for call in plain["tool_calls"]]
        plain["tool_calls"] = [call for call in parsed if call["args"] is not None]
    return plain


_NAME = re.compile(r"[a-z]+(_[a-z]+)+")
_CHUNKS = {"AIMessageChunk": "ai", "HumanMessageChunk": "human", "ToolMessageChunk": "tool"}
"""Types of streamed messages -> types of whole messages."""
_ITEMS = {"reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
"""Items of OpenAI's Responses that are no messages."""
_WITHOUT_TEXT = {
    *(
        "image",
        "image_url",
        "input_image",
        "data",
        "tool_reference",
        "audio",
        "input_audio",
        "video",
        "file",
        "input_file",
        "document",
        "media",
    ),
    *("data", "tool_reference"),
    # Hidden reasoning, and what a server's own tools did within a turn.
    *("redacted_thinking", "server_tool_use", "web_search_tool_result", "code_execution_tool_result", "search_result"),
    *("server_tool_call", "server_tool_result", "blob", "uri"),
}
