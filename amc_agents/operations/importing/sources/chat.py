"""Chats in OpenAI's form: a JSON object per conversation with its `messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.operations.importing.records import field_of, task_of, text_of
from amc_agents.operations.importing.runs import (
    LoggedRun,
    Origin,
    UnreadableRecord,
    digest,
    runs_of_conversation,
    without_prompt,
)
from amc_agents.operations.importing.settings import Reading
from amc_agents.operations.importing.sources.messages import check_calls, messages_of
from amc_agents.quoting import quoted


def runs_of_chat(record: Mapping[str, Any], where: str, reading: Reading) -> Iterator[LoggedRun]:
    """Yield the runs of a conversation.

    Expected: {"messages": [{"role": "user", "content": "..."}, ...]}, or the same in `traj`, `request.messages` or
    `input`. The model's last answer is the last message, or in `choices`, `output` or `content`, as an endpoint returns
    it. Every other field may hold an outcome.

    Raises:
        UnreadableRecord: the record has another form.
    """
    messages = messages_of(next(filter(None, (field_of(record, name) for name in _GIVEN)), None))
    answer = _answer(record)
    if answer and _same(messages[-1], answer[0]):
        answer = answer[1:]  # the log has it in both places
    conversation = without_prompt([*messages, *answer], system_is_task=reading.system_is_task)
    check_calls(conversation)
    one = reading.turns == "one" or (reading.turns is None and is_benchmark(record))
    task, trial = task_of(record, reading.task), text_of(record, "trial_name", "trial")
    yield from runs_of_conversation(
        conversation,
        Origin(
            _thread(record, conversation, reading, task, trial), where, record=record, trial=trial,
            outcome=record.get("reward") if "traj" in record else None,
            started=text_of(record, "started_at", "start_time"), ended=text_of(record, "ended_at", "end_time"),
        ),
        split=not one,
        task=task,
        over=True if one else None,
    )  # fmt: skip


def is_benchmark(record: Mapping[str, Any]) -> bool:
    """Whether a record has the form of a benchmark's log: one run with one outcome, whoever answers the agent."""
    return "traj" in record or str(record.get("trajectory_format", "")).startswith("mini-swe-agent")


def _answer(record: Mapping[str, Any]) -> list[BaseMessage]:
    response = field_of(record, "response") or record
    if isinstance(response, Mapping) and isinstance(response.get("output"), list):
        return messages_of(response["output"])
    if response is not record and isinstance(response, Mapping) and "content" in response:
        return messages_of([{"role": "assistant", "content": response["content"]}])
    choices = field_of(record, "choices") or field_of(record, "response.choices")
    if not choices:
        return []
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise UnreadableRecord("expected one choice: it is unknown which of several answers went on")
    return messages_of([choices[0].get("message")])


def _same(ours: BaseMessage, theirs: BaseMessage) -> bool:
    calls = ([(call["name"], call["args"]) for call in _calls(message)] for message in (ours, theirs))
    return ours.type == theirs.type and ours.text == theirs.text and next(calls) == next(calls)


def _thread(
    record: Mapping[str, Any], conversation: Sequence[BaseMessage], reading: Reading, task: str, trial: str
) -> str:
    names = (reading.thread,) if reading.thread else _THREADS
    for name in names:
        value = field_of(record, name)
        if isinstance(value, str | int) and str(value):
            return str(value)
    if reading.thread:
        raise UnreadableRecord(f"no conversation id: expected text or a number in {quoted(reading.thread)}")
    if trial or is_benchmark(record):
        return "/".join(filter(None, (task, trial)))
    # Without ids, equal conversations are the same conversation.
    return digest(json.dumps([(message.type, message.text, *_calls(message)) for message in conversation], default=str))


def _calls(message: BaseMessage) -> list[Any]:
    return message.tool_calls if isinstance(message, AIMessage) else []


_GIVEN = ("messages", "traj", "request.messages", "input", "request.input")
_THREADS = ("thread_id", "conversation_id", "session_id", "id")
