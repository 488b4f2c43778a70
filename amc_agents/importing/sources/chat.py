"""Chats in OpenAI's form: a JSON object per conversation with its `messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.importing.records import field_of
from amc_agents.importing.runs import (
    LoggedRun,
    Origin,
    UnreadableRecord,
    digest,
    runs_of_conversation,
    without_prompt,
)
from amc_agents.importing.settings import Reading
from amc_agents.importing.sources.messages import check_calls, messages_of
from amc_agents.quoting import quoted


def runs_of_chat(record: Mapping[str, Any], where: str, reading: Reading) -> Iterator[LoggedRun]:
    """Yield the runs of a conversation.

    Expected: {"messages": [{"role": "user", "content": "..."}, ...]}. The model's last answer is the last message or in
    `choices` or `response.choices`, as an endpoint returns it. Every other field may hold an outcome.

    Raises:
        UnreadableRecord: the record has another form.
    """
    listed = field_of(record, "messages") or field_of(record, "request.messages")
    messages = [*messages_of(listed), *_answer(record)]
    conversation = without_prompt(messages, system_is_task=reading.system_is_task)
    check_calls(conversation)
    yield from runs_of_conversation(
        conversation,
        Origin(_thread(record, conversation, reading), where, record=record),
        split=reading.turns == "each",
        task=str(field_of(record, reading.task) or "") if reading.task else "",
        over=True if reading.turns == "one" else None,
    )


def _answer(record: Mapping[str, Any]) -> list[BaseMessage]:
    choices = field_of(record, "choices") or field_of(record, "response.choices")
    if not choices:
        return []
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise UnreadableRecord("expected one choice: it is unknown which of several answers went on")
    return messages_of([choices[0].get("message")])


def _thread(record: Mapping[str, Any], conversation: Sequence[BaseMessage], reading: Reading) -> str:
    names = (reading.thread,) if reading.thread else _THREADS
    for name in names:
        value = field_of(record, name)
        if isinstance(value, str | int) and str(value):
            return str(value)
    if reading.thread:
        raise UnreadableRecord(f"no conversation id: expected text or a number in {quoted(reading.thread)}")
    # Without ids, equal conversations are the same conversation.
    return digest(json.dumps([(message.type, message.text, *_calls(message)) for message in conversation], default=str))


def _calls(message: BaseMessage) -> list[Any]:
    return message.tool_calls if isinstance(message, AIMessage) else []


_THREADS = ("thread_id", "conversation_id", "session_id", "id")
