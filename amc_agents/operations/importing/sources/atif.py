"""ATIF, the agent trajectory interchange format: a JSON document per trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amc_agents.operations.importing.records import task_of, text_of
from amc_agents.operations.importing.runs import (
    LoggedRun,
    Origin,
    UnreadableRecord,
    digest,
    runs_of_conversation,
    without_prompt,
)
from amc_agents.operations.importing.settings import Reading
from amc_agents.operations.importing.sources.messages import messages_of
from amc_agents.quoting import quoted


def runs_of_document(record: Mapping[str, Any], where: str, reading: Reading) -> Iterator[LoggedRun]:
    """Yield the runs of a trajectory.

    Raises:
        UnreadableRecord: a step has another form.
    """
    # Harnesses put the document into an envelope, with the outcome and the times beside it.
    inner = record.get("trajectory")
    document = inner if isinstance(inner, Mapping) and "steps" in inner else record
    steps = document.get("steps")
    if not isinstance(steps, Sequence) or not all(isinstance(step, Mapping) for step in steps):
        raise UnreadableRecord(f"expected a list of `steps`, got {type(steps).__name__}")
    if document.get("continued_trajectory_ref"):
        raise UnreadableRecord("the trajectory goes on in another file: expected the whole trajectory in one")
    messages = messages_of([message for number, step in enumerate(steps) for message in _messages_of(step, number)])
    trial = text_of(record, "trial_name", "trial", "trial_id")
    thread = trial or text_of(document, "session_id", "trajectory_id")
    times = [text_of(step, "timestamp") for step in steps]
    yield from runs_of_conversation(
        without_prompt(messages, system_is_task=reading.system_is_task),
        Origin(
            thread or digest(json.dumps(steps, sort_keys=True)), where, record=record, trial=trial,
            outcome=record.get("reward") if document is inner else None,
            started=text_of(record, "started_at") or (times[0] if times else ""),
            ended=text_of(record, "ended_at", "finished_at") or (times[-1] if times else ""),
        ),
        split=reading.turns == "each" or (reading.turns is None and document is record),
        task=task_of(record, reading.task),
        # A document is written when the agent has stopped.
        over=True,
    )  # fmt: skip


def _messages_of(step: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    text = _text(step.get("message"))
    source = step.get("source")
    if source in ("user", "system"):
        yield {"role": source, "content": text}
    elif source == "agent":
        calls = [_call(call) for call in step.get("tool_calls") or ()]
        reasoning = step.get("reasoning_content")
        yield {"role": "assistant", "content": text, "tool_calls": calls, "reasoning_content": reasoning}
    else:
        raise UnreadableRecord(f"step {number + 1} has the source {quoted(source, 30)}: expected user, system or agent")
    for result in (step.get("observation") or {}).get("results") or ():
        yield {"role": "tool", "content": _text(result.get("content")), "tool_call_id": result.get("source_call_id")}


def _call(call: Any) -> dict[str, Any]:
    try:
        name = call["function_name"] if "function_name" in call else call["tool_name"]
        return {"name": name, "args": call["arguments"], "id": call.get("tool_call_id")}
    except (AttributeError, KeyError, TypeError) as error:
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
