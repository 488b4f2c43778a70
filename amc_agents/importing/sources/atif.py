"""ATIF, the agent trajectory interchange format: a JSON document per trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

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
from amc_agents.quoting import quoted


def runs_of_document(record: Mapping[str, Any], where: str, reading: Reading) -> Iterator[LoggedRun]:
    """Yield the runs of a trajectory.

    Raises:
        UnreadableRecord: a step has another form.
    """
    steps = record.get("steps")
    if not isinstance(steps, Sequence) or not all(isinstance(step, Mapping) for step in steps):
        raise UnreadableRecord(f"expected a list of `steps`, got {type(steps).__name__}")
    if record.get("continued_trajectory_ref"):
        raise UnreadableRecord("the trajectory goes on in another file: expected the whole trajectory in one")
    messages = [message for number, step in enumerate(steps) for message in _messages_of(step, number)]
    thread = str(record.get("session_id") or record.get("trajectory_id") or "")
    yield from runs_of_conversation(
        without_prompt(messages, system_is_task=reading.system_is_task),
        Origin(thread or digest(json.dumps(steps, sort_keys=True)), where, record=record),
        split=reading.turns == "each",
        task=str(field_of(record, reading.task) or "") if reading.task else "",
        # A document is written when the agent has stopped.
        over=True,
    )


def _messages_of(step: Mapping[str, Any], number: int) -> Iterator[BaseMessage]:
    text = _text(step.get("message"))
    match step.get("source"):
        case "user":
            yield HumanMessage(text)
        case "system":
            yield SystemMessage(text)
        case "agent":
            yield _turn(step, text)
        case other:
            raise UnreadableRecord(
                f"step {number + 1} has the source {quoted(other, 30)}: expected user, system or agent"
            )
    observation = step.get("observation") or {}
    for result in observation.get("results") or ():
        call = str(result.get("source_call_id") or "")
        yield ToolMessage(_text(result.get("content")), tool_call_id=call)


def _turn(step: Mapping[str, Any], text: str) -> AIMessage:
    try:
        calls = [
            {"name": call["function_name"], "args": call["arguments"], "id": call["tool_call_id"], "type": "tool_call"}
            for call in step.get("tool_calls") or ()
        ]
        reasoning = step.get("reasoning_content")
        more = {"reasoning_content": reasoning} if reasoning else {}
        return AIMessage(text, tool_calls=calls, additional_kwargs=more)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableRecord(
            f"a tool call has an unknown form ({type(error).__name__}): expected tool_call_id, function_name, arguments"
        ) from None


def _text(content: Any) -> str:
    """Return a text, or the text parts of mixed content."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    raise UnreadableRecord(f"expected text, got {type(content).__name__}")
