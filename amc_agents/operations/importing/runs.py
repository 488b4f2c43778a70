"""What a source of logs yields: runs of an agent as trajectories, and records that cannot be read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from amc_agents.messages import MessageReader, instruction_of, lines_of
from amc_agents.types import Task, Trajectory


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
    name = task or task_name(messages[: starts[0]])
    # Each message is looked at once, however many runs begin with it.
    lines = lines_of(messages)
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
