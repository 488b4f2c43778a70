"""The kinds of logs whose every JSON object is read alone: chats, LangSmith runs, and ATIF trajectories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.operations.importing.logged_messages import check_calls, messages_of
from amc_agents.operations.importing.logged_runs import (
    LoggedRun,
    Origin,
    Reading,
    UnreadableRecord,
    amount_of,
    digest,
    field_of,
    is_answer,
    moment_of,
    reader_of,
    runs_of_conversation,
    task_of,
    text_of,
    total_of,
    turn_starts,
    without_prompt,
)
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
            **_measured(record),
        ),
        split=not one,
        task=task,
        over=True if one else None,
    )  # fmt: skip


def is_benchmark(record: Mapping[str, Any]) -> bool:
    """Whether a record has the form of a benchmark's log: one run with one outcome, whoever answers the agent."""
    return "traj" in record or str(record.get("trajectory_format", "")).startswith("mini-swe-agent")


def _measured(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times, tokens and cost of a conversation, as fields of `Origin`."""
    # mini-swe-agent writes the answers of the endpoint beside the messages.
    more = [message["extra"] for message in record.get("messages") or () if isinstance(message.get("extra"), Mapping)]
    called = [each for each in more if isinstance(each.get("response"), Mapping)]
    return {
        "started": moment_of(record, "started_at", "start_time") or _moment(more[:1]),
        "ended": moment_of(record, "ended_at", "end_time") or _moment(more[-1:]),
        "tokens": first_known(
            amount_of(record, "total_tokens"), amount_of(record, "usage.total_tokens"),
            total_of(field_of(each, "response.usage.total_tokens") for each in called),
        ),
        "cost": first_known(amount_of(record, "info.model_stats.instance_cost"), amount_of(record, "cost")),
    }  # fmt: skip


def _moment(extra: Sequence[Mapping[str, Any]]) -> str:
    return moment_of(extra[0], "timestamp", "response.created") if extra else ""


def first_known(*amounts: float | None) -> float | None:
    """Return the first amount that is known."""
    return next((amount for amount in amounts if amount is not None), None)


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


def runs_of_trace(record: Mapping[str, Any], where: str, reading: Reading) -> Iterator[LoggedRun]:
    """Yield the run of an agent; nothing for the runs inside it, whose messages are in its outputs.

    Raises:
        UnreadableRecord: the run has no messages, or its outputs do not contain what it was given.
    """
    if record.get("parent_run_id") or "." in str(record.get("dotted_order") or ""):
        return
    run = {**record, **{name: _unpacked(record.get(name)) for name in ("inputs", "outputs", "extra", "feedback_stats")}}
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
    thread = next((str(metadata[name]) for name in _THREAD_METADATA if metadata.get(name)), run_id)
    return Origin(
        thread, where, run_id, run, _feedback(run["feedback_stats"]), started=moment_of(run, "start_time"),
        ended=moment_of(run, "end_time"), tokens=amount_of(run, "total_tokens"), cost=amount_of(run, "total_cost"),
    )  # fmt: skip


def _feedback(stats: Any) -> dict[str, float]:
    """Return the mean of each feedback score; a score that was not given is left out."""
    scores = stats if isinstance(stats, Mapping) else {}
    means = {key: value.get("avg") if isinstance(value, Mapping) else value for key, value in scores.items()}
    return {key: mean for key, mean in means.items() if mean is not None}


def _unpacked(value: Any) -> Any:
    """Parse a field that a bulk export wrote as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise UnreadableRecord("the run's inputs, outputs, extra or feedback_stats are text but not JSON") from None


_THREAD_METADATA = ("thread_id", "session_id", "conversation_id")
"""Metadata by which LangSmith groups runs into threads."""


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
    times = [moment for moment in (moment_of(step, "timestamp") for step in steps) if moment]
    said = [step for step in steps if step.get("source") == "agent"]
    yield from runs_of_conversation(
        without_prompt(messages, system_is_task=reading.system_is_task),
        Origin(
            thread or digest(json.dumps(steps, sort_keys=True)), where, record=record, trial=trial,
            outcome=record.get("reward") if document is inner else None,
            started=moment_of(record, "started_at") or (times[0] if times else ""),
            ended=moment_of(record, "ended_at", "finished_at") or (times[-1] if times else ""),
            tokens=first_known(
                amount_of(record, "agent_result.n_input_tokens", "agent_result.n_output_tokens"),
                amount_of(document, "final_metrics.total_prompt_tokens", "final_metrics.total_completion_tokens"),
                total_of(field_of(step, f"metrics.{name}") for step in said for name in _ATIF_TOKENS),
            ),
            cost=first_known(
                amount_of(record, "agent_result.cost_usd"), amount_of(document, "final_metrics.total_cost_usd"),
                total_of(field_of(step, "metrics.cost_usd") for step in said),
            ),
        ),
        split=reading.turns == "each" or (reading.turns is None and document is record),
        task=task_of(record, reading.task),
        # A document is written when the agent has stopped.
        over=True,
    )  # fmt: skip


_ATIF_TOKENS = ("prompt_tokens", "completion_tokens")


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
