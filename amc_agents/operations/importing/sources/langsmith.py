"""LangSmith runs: a JSON object per run, as `Client.list_runs` or an export gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.operations.importing.records import field_of, task_of
from amc_agents.operations.importing.runs import LoggedRun, Origin, UnreadableRecord, is_answer, reader_of, turn_starts
from amc_agents.operations.importing.settings import Reading
from amc_agents.operations.importing.sources.messages import check_calls, messages_of


def runs_of_trace(record: Mapping[str, Any], where: str, reading: Reading) -> Iterator[LoggedRun]:
    """Yield the run of an agent; nothing for the runs inside it, whose messages are in its outputs.

    Raises:
        UnreadableRecord: the run has no messages, or its outputs do not contain what it was given.
    """
    if record.get("parent_run_id") or "." in str(record.get("dotted_order") or ""):
        return
    run = {**record, **{name: _parsed(record.get(name)) for name in ("inputs", "outputs", "extra", "feedback_stats")}}
    if not run["outputs"]:
        raise UnreadableRecord("a run without outputs: it failed or is not finished")
    given, final = _messages(run, "inputs"), _messages(run, "outputs")
    start = _end_of_input(given, final)
    produced = final[start:]
    if not any(isinstance(message, AIMessage) for message in produced):
        raise UnreadableRecord("no message of the agent: nothing to learn from")
    check_calls(final)
    task = task_of(run, reading.task)
    yield LoggedRun(
        _origin(run, where),
        reader_of(final[:start], task).read(final, done=True).trajectory,
        tuple(final),
        turn=len(turn_starts(final[:start])),
        over="__interrupt__" not in run["outputs"] and run.get("status") != "pending",
        cut_off=not is_answer(produced[-1]),
    )


def _messages(run: Mapping[str, Any], name: str) -> list[BaseMessage]:
    messages = run[name].get("messages") if isinstance(run[name], Mapping) else None
    if not messages:
        raise UnreadableRecord(
            f"the run's {name} have no `messages`: expected a traced agent as the outermost run, not a chain around it"
        )
    return messages_of([messages] if isinstance(messages, str | Mapping) else messages)


def _end_of_input(given: Sequence[BaseMessage], final: Sequence[BaseMessage]) -> int:
    """Return where the agent's input ends in its final messages, which may begin with earlier turns."""
    wanted = [_content(message) for message in given]
    contents = [_content(message) for message in final]
    for start in range(len(final) - len(given), -1, -1):
        if contents[start : start + len(given)] == wanted:
            return start + len(given)
    raise UnreadableRecord(
        "the outputs do not contain the messages of the inputs: the agent shortens them, so steps are lost. Import the "
        "agent's checkpointer instead"
    )


def _content(message: BaseMessage) -> tuple[str, str]:
    return message.type, message.text


def _origin(run: Mapping[str, Any], where: str) -> Origin:
    run_id = str(run.get("id") or run.get("run_id") or "")
    if not run_id:
        raise UnreadableRecord("the run has no `id`, by which outcomes and repeated imports know it")
    metadata = field_of(run, "extra.metadata") or {}
    thread = next((str(metadata[name]) for name in _THREADS if metadata.get(name)), run_id)
    return Origin(thread, where, run_id, run, _feedback(run["feedback_stats"]))


def _feedback(stats: Any) -> dict[str, float]:
    """Return the mean of each feedback score; a score that was not given is left out."""
    scores = stats if isinstance(stats, Mapping) else {}
    means = {key: value.get("avg") if isinstance(value, Mapping) else value for key, value in scores.items()}
    return {key: mean for key, mean in means.items() if mean is not None}


def _parsed(value: Any) -> Any:
    """Parse a field that a bulk export wrote as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise UnreadableRecord("the run's inputs, outputs, extra or feedback_stats are text but not JSON") from None


_THREADS = ("thread_id", "session_id", "conversation_id")
"""Metadata by which LangSmith groups runs into threads."""
