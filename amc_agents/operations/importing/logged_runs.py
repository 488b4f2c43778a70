"""What a source of logs yields: runs of an agent with their outcomes, and records that cannot be read."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Literal, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.messages import MessageReader, instruction_of, lines_of
from amc_agents.quoting import quoted
from amc_agents.types import Task, Trajectory

Kind = Literal["atif", "chat", "checkpoints", "langsmith", "spans"]
"""A kind of source: ATIF, OpenAI-style chats, a LangGraph checkpointer, LangSmith runs, OpenTelemetry spans."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source of logs is read."""

    kind: Kind | None = None
    """Kind of the source; None: recognised by its content."""
    step_after: tuple[str, ...] = ("tools",)
    """Nodes after which `amc()` pauses, for a checkpointer: the agent's messages are read where a run would read them.
    Matters only for agents that shorten or edit their messages."""
    turns: Literal["each", "one"] | None = None
    """What a user message after the agent's first message does. "each": it starts another run, as another call of the
    agent does. "one": it is an observation, as with a text agent whose world answers as the user. None: "one" for the
    forms of benchmarks, whose record has one outcome, otherwise "each"; `import_logs` asks where that would make many
    runs of each record."""
    system_is_task: bool = False
    """Whether a leading system message is part of the task. By default it is the agent's prompt, which no critic reads
    at run time."""
    thread: str | None = None
    """Field of a chat's record with the id of its conversation; None: `thread_id`, `conversation_id`, `session_id` or
    `id`."""
    task: str | None = None
    """Field of a record with the name of its task. None: `task_name`, `instance_id` or `task_id`; conversations without
    these belong to the same task if their first instruction is the same."""
    known: Callable[[str, str], bool] = lambda thread, version: False
    """(thread, version) -> whether it was imported before, so that it need not be read."""

    def __post_init__(self) -> None:
        """Refuse unknown values."""
        if self.kind is not None and self.kind not in get_args(Kind):
            raise ConfigurationError(f"the kind of logs is {quoted(self.kind)}: expected {', '.join(get_args(Kind))}")
        if self.turns not in ("each", "one", None):
            raise ConfigurationError(f'turns is {quoted(self.turns)}: expected "each" or "one"')


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run was logged, and what its source says about its outcome."""

    thread: str
    """Id of the conversation; outcomes are joined by it."""
    where: str
    """Place in the source, such as "chats.jsonl line 3"."""
    run_id: str = ""
    """Id of the run alone, if the source has such ids; outcomes are joined by it too."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The source's own record, in which `Outcomes.reward` is looked up."""
    feedback: Mapping[str, float] | None = None
    """Scores by name; None: this kind of source has none."""
    version: str = ""
    """Changes when the conversation goes on; "" if the source does not say."""
    outcome: float | bool | None = None
    """What the form of the record itself calls its reward; None: it has none."""
    trial: str = ""
    """Name of the run among those of its task; "" if the record does not say."""
    started: str = ""
    """When the run started and ended, as the record writes it; "" if it does not say."""
    ended: str = ""
    tokens: float | None = None
    """Tokens of all model calls, prompts included, and their cost in dollars; None: the record does not say."""
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of an agent: from its input to its answer, as one call of an `amc()` graph would see it."""

    origin: Origin
    trajectory: Trajectory
    """Read as at run time, without rewards. Its task is named after the conversation's first instruction."""
    messages: tuple[BaseMessage, ...]
    """The conversation at the end of the run."""
    turn: int = 0
    """Number of the run within its conversation."""
    over: bool = True
    """Whether the run has ended. A run that is not over is imported only if its outcome is known."""
    cut_off: bool = False
    """Whether the run stopped before the agent's answer, as at a step limit."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that is not imported."""

    where: str
    """Place in the source."""
    reason: str
    """What was expected and what came; never text of the conversation."""


class UnreadableRecord(ValueError):
    """A record cannot be read; the message is the reason of a `Refused`."""


@contextmanager
def malformed_is_unreadable() -> Iterator[None]:
    """Turn the error of a record with another form than its source's into `UnreadableRecord`."""
    try:
        yield
    except UnreadableRecord:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # The error's own text may quote the conversation.
        raise UnreadableRecord(f"the record has an unknown form ({type(error).__name__})") from None


def turn_starts(messages: Sequence[BaseMessage]) -> list[int]:
    """Return the indices of the messages with which the agent begins to answer a user."""
    starts = []
    user_spoke = True
    for at, message in enumerate(messages):
        if isinstance(message, HumanMessage):
            user_spoke = True
        elif isinstance(message, AIMessage) and user_spoke:
            starts.append(at)
            user_spoke = False
    return starts


def runs_of_conversation(
    messages: Sequence[BaseMessage], origin: Origin, *, split: bool, task: str = "", over: bool | None = None
) -> Iterator[LoggedRun]:
    """Yield the runs of a whole conversation.

    Args:
        messages: the conversation, without the agent's system prompt.
        origin: of the conversation.
        split: a user message after the agent's opens another run; otherwise it is an observation of the same run.
        task: name of the task, as in `reader_of`.
        over: whether the last run has ended; None: it has if it ends with an answer.

    Raises:
        UnreadableRecord: the agent says nothing.
    """
    starts = turn_starts(messages)
    if not starts:
        raise UnreadableRecord("no message of the agent: nothing to learn from")
    starts = starts if split else starts[:1]
    if len(starts) > 1:
        # What is logged for the conversation is not what one of its runs took.
        origin = replace(origin, started="", ended="", tokens=None, cost=None)
    elif origin.started == origin.ended:
        origin = replace(origin, ended="")  # a single moment was logged, which is no duration
    name = task or task_name(messages[: starts[0]])
    # Each message is looked at once, however many runs begin with it.
    lines = lines_of(messages[: starts[-1]])
    for number, start in enumerate(starts):
        produced: Iterable[BaseMessage] = islice(messages, start, None)
        if split:
            produced = takewhile(lambda message: not isinstance(message, HumanMessage), produced)
        turn = tuple(produced)
        said = messages[0].text if start == 1 else "\n".join(lines[:start])
        answered = is_answer(turn[-1])
        yield LoggedRun(
            origin,
            MessageReader(Trajectory(Task(name, said)), {}).read(turn, done=True).trajectory,
            tuple(messages[: start + len(turn)]),
            turn=number,
            over=True if start != starts[-1] else answered if over is None else over,
            cut_off=split and not answered,
        )


def is_answer(message: BaseMessage) -> bool:
    """Return whether a message ends the agent's run: it is the agent's and calls no tool."""
    return isinstance(message, AIMessage) and not message.tool_calls


def without_prompt(messages: Sequence[BaseMessage], *, system_is_task: bool) -> list[BaseMessage]:
    """Drop the agent's system prompt, which is not in an agent's state, so that no critic reads it at run time.

    Args:
        messages: a conversation as sent to a model.
        system_is_task: a leading system message belongs to the task.
    """
    drop = len(messages) > 1 and isinstance(messages[0], SystemMessage) and not system_is_task
    return list(messages[1:] if drop else messages)


def reader_of(given: Sequence[BaseMessage], task: str = "") -> MessageReader:
    """Start reading a run from the agent's input.

    Args:
        given: the input messages.
        task: name of the task. "": derived from the conversation's first instruction, so that all conversations that
            begin alike, and all turns of a conversation, belong to the same task.
    """
    reader = MessageReader.start(given)
    name = task or task_name(takewhile(lambda message: not isinstance(message, AIMessage), given))
    return replace(reader, trajectory=Trajectory(Task(name, reader.trajectory.task.instruction)))


def task_name(first: Iterable[BaseMessage]) -> str:
    """Name a task after the first instruction of its conversations."""
    return f"task-{digest(instruction_of(tuple(first)))}"


def digest(text: str) -> str:
    """Return a short fingerprint of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def field_of(record: Mapping[str, Any], path: str) -> Any:
    """Return a field of a record; None if it is missing.

    A path is a name, or names joined by dots; a name may contain dots itself, as those of span attributes do.

    >>> field_of({"metadata": {"score": 0.5}, "app.score": 1}, "metadata.score")
    0.5
    >>> field_of({"metadata": {"score": 0.5}, "app.score": 1}, "app.score")
    1
    """
    if path in record:
        return record[path]
    name, _, rest = path.partition(".")
    inner = record.get(name)
    return field_of(inner, rest) if rest and isinstance(inner, Mapping) else None


def text_of(record: Mapping[str, Any], *names: str) -> str:
    """Return the first field of a record that is text or a number, as text; "" if none is."""
    values = (field_of(record, name) for name in names)
    found = (str(value) for value in values if isinstance(value, str | int | float) and not isinstance(value, bool))
    return next(filter(None, found), "")


def amount_of(record: Mapping[str, Any], *names: str) -> float | None:
    """Return the sum of fields of a record; None if one of them is no number."""
    return total_of(field_of(record, name) for name in names)


def total_of(values: Iterable[Any]) -> float | None:
    """Return the sum of numbers; None if there are none, or one of them is no number."""
    listed = list(values)
    if not listed or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in listed):
        return None
    return float(sum(listed)) if all(math.isfinite(value) for value in listed) else None


def moment_of(record: Mapping[str, Any], *names: str) -> str:
    """Return the first field of a record that is a time, as text; "" if none is.

    A number counts from 1970, in seconds, milliseconds, microseconds or nanoseconds, as its size shows.
    """
    text = text_of(record, *names)
    try:
        number = float(text)
    except ValueError:
        return text
    if not 0 < number < math.inf:
        return ""
    while number > _LAST_SECOND:
        number /= 1000
    return datetime.fromtimestamp(number, UTC).isoformat()


def task_of(record: Mapping[str, Any], named: str | None) -> str:
    """Return the name of a record's task.

    Args:
        record: the record.
        named: the field with the name; None: one of the usual names. "" if it has none.
    """
    return text_of(record, *((named,) if named else ("task_name", "instance_id", "task_id")))


def number_of(value: Any, name: str) -> float | None:
    """Return an outcome as a number; None stays None.

    Raises:
        UnreadableRecord: it is neither a finite number nor true or false.
    """
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not abs(value) < math.inf:
        got = value if isinstance(value, float) else f"a {type(value).__name__}"
        raise UnreadableRecord(f"outcome {quoted(name)} is {got}: expected a finite number, true or false")
    try:
        return float(value)
    except OverflowError:
        raise UnreadableRecord(f"outcome {quoted(name)} is too large for a number") from None


_LAST_SECOND = 1e11
"""In the year 5138."""
OutcomeFunction = Callable[[LoggedRun], float | None]
"""Computes the outcome of a run; None: it is not known yet."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Where the outcomes of runs come from. A run without an outcome is kept and marked, never counted as a 0.

    Without settings, the reward counts that the form of a benchmark's record has itself.
    """

    reward: str | None = None
    """Field of the source's record: a name, or names joined by dots. Of a checkpointer: a field of the agent's state;
    of spans: an attribute."""
    feedback: str | None = None
    """Name of a feedback score in LangSmith runs, or of an evaluation in spans; the mean of several."""
    function: OutcomeFunction | None = None
    """Computes the outcome."""
    table: str | Path | None = None
    """CSV file with the columns `thread_id` and `value`. It takes precedence over the other settings, and also updates
    runs that were imported before."""

    def __post_init__(self) -> None:
        """Refuse two sources in the logs."""
        given = [name for name in ("reward", "feedback", "function") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(f"outcomes come from {' and from '.join(given)}: choose one of them")

    def one_for(self, record: Mapping[str, Any]) -> bool:
        """Return whether the whole conversation of a record has one outcome."""
        return self.table is not None or (self.reward is not None and field_of(record, self.reward) is not None)

    def of(self, run: LoggedRun) -> float | None:
        """Return the outcome that the logs give a run; None: unknown.

        Raises:
            UnreadableRecord: it is not a number.
            ConfigurationError: this kind of source has no feedback, or the function failed.
        """
        if self.reward is not None:
            return number_of(field_of(run.origin.record, self.reward), self.reward)
        if self.feedback is not None:
            return self._feedback(run, self.feedback)
        if self.function is None:
            return number_of(run.origin.outcome, "reward")
        try:
            value = self.function(run)
        except Exception as error:
            raise ConfigurationError(
                f"{run.origin.where}: the reward function failed ({type(error).__name__}: {error}); "
                "let it return None where the outcome is unknown"
            ) from error
        return number_of(value, "of the reward function")

    @staticmethod
    def _feedback(run: LoggedRun, name: str) -> float | None:
        if run.origin.feedback is None:
            raise ConfigurationError(
                f"feedback {quoted(name)} was asked for, but only LangSmith runs and spans have feedback: use a field "
                "(--reward), a table (--outcomes) or a function (--reward-function)"
            )
        return number_of(run.origin.feedback.get(name), name)


def read_outcomes(table: str | Path) -> dict[str, float]:
    """Read a CSV file with the columns `thread_id` and `value`, in any order and among others; the last row counts.

    `thread_id` may also name a single run (such as a LangSmith run). `value` is a number, true or false; rows without
    a value are skipped. A JSON file holds the results of SWE-bench: `{"instances": [{"instance_id", "resolved"}]}`,
    lists of ids (`resolved_ids`, `resolved`), a list of resolved ids alone, or an object from each id to true or false,
    or to `{"resolved": true}`.

    Raises:
        CheckpointError: the file cannot be read, or a row has another form; the message names the line.
    """
    if Path(table).suffix == ".json":
        return _resolved(Path(table))
    outcomes: dict[str, float] = {}
    try:
        with Path(table).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = {"thread_id", "value"} - set(rows.fieldnames or ())
            if missing:
                raise CheckpointError(
                    f"{table} lacks the column {' and '.join(sorted(missing))}: expected a first line `thread_id,value`"
                )
            for row in rows:
                thread, value = row["thread_id"], (row["value"] or "").strip()
                if thread and value:
                    outcomes[thread] = _number(value, f"{table} line {rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CheckpointError(f"{table} cannot be read ({error}): expected a CSV file in UTF-8") from error
    return outcomes


def _resolved(path: Path) -> dict[str, float]:
    """Read the results of SWE-bench: instance -> 1 if it was resolved, else 0."""
    remedy = (
        "expected a CSV file, or JSON with `instances`, `resolved_ids` or `resolved`, a list of resolved ids, or an "
        "object from each id to true or false"
    )
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({type(error).__name__}): {remedy}") from None
    try:
        with malformed_is_unreadable():
            return _by_instance(content)
    except UnreadableRecord as error:
        raise CheckpointError(f"{path} has another form ({error}): {remedy}") from None


def _by_instance(content: Any) -> dict[str, float]:
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        content = {"instances": content}
    if isinstance(content, list):
        content = {"resolved": content}
    if "instances" in content:
        return {str(each["instance_id"]): float(bool(each["resolved"])) for each in content["instances"]}
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    resolved = lists.get("resolved_ids", lists.get("resolved"))
    if resolved is None:
        each = {name: value["resolved"] if isinstance(value, Mapping) else value for name, value in content.items()}
        if not each or not all(isinstance(value, bool) for value in each.values()):
            raise UnreadableRecord("no ids of resolved instances")
        return {name: float(value) for name, value in each.items()}
    if not all(isinstance(name, str) for names in lists.values() for name in names):
        raise UnreadableRecord("a list that holds other than ids")
    # Such files may list only what was resolved; every other run that is imported was not.
    table = {name: 0.0 for names in lists.values() for name in names} | dict.fromkeys(resolved, 1.0)
    return table if "unresolved_ids" in lists or "unresolved" in lists else ResolvedOnly(table)


class ResolvedOnly(dict[str, float]):
    """A table of outcomes in which a run that it does not name was not resolved."""


def outcome_in(table: Mapping[str, float], *, thread: str, run_id: str, known: bool = False) -> float | None:
    """Return the outcome of a run in a table: its own, otherwise its conversation's.

    Args:
        table: of outcomes.
        thread: id of the conversation.
        run_id: id of the run; "" if it has none.
        known: the outcome is known from elsewhere, so only a row that names the run changes it.
    """
    missing = 0.0 if isinstance(table, ResolvedOnly) and not known else None
    return table.get(run_id, table.get(thread, missing)) if run_id else table.get(thread, missing)


def _number(text: str, where: str) -> float:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        number = number_of(float(text), "value")
    except (ValueError, UnreadableRecord):
        number = None
    if number is None:
        raise CheckpointError(f"{where}: expected a finite number, true or false in `value`, got {quoted(text, 40)}")
    return number
