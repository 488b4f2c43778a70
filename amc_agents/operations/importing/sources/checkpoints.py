"""Threads of a LangGraph checkpointer: every call of the agent, read where `amc()` would pause it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage

from amc_agents.messages import MessageReader, as_message
from amc_agents.operations.importing.records import task_of
from amc_agents.operations.importing.runs import (
    LoggedRun,
    Origin,
    Refused,
    UnreadableRecord,
    is_answer,
    malformed_is_unreadable,
    reader_of,
    runs_of_conversation,
)
from amc_agents.operations.importing.settings import Reading
from amc_agents.operations.importing.sources.saved_threads import SavedState, SavedThreads


def read_threads(threads: SavedThreads, reading: Reading) -> Iterator[LoggedRun | Refused]:
    """Yield the runs of every thread, except those that `reading.known` knows in their newest version."""
    for thread, newest in threads.newest():
        if reading.known(thread, newest):
            continue
        try:
            with malformed_is_unreadable():
                yield from _runs_of_thread(thread, threads.history(thread), reading)
        except UnreadableRecord as error:
            yield Refused(_where(thread), str(error))


def _runs_of_thread(thread: str, history: Iterator[SavedState], reading: Reading) -> Iterator[LoggedRun]:
    call: _Call | None = None
    for state in history:
        if call is None and state.source != "input":
            yield from _without_history(thread, [state, *history][-1], reading)
            return
        if state.source == "input":
            if call is not None:
                yield from call.end(thread, reading, over=True)
            call = _Call(0 if call is None else call.number + 1, state)
        elif call is not None:
            call.read(state, reading)
    if call is not None:
        yield from call.end(thread, reading, over=call.last.finished)


@dataclass
class _Call:
    """A call of the agent, while its checkpoints are read from the oldest to the newest."""

    number: int
    last: SavedState
    reader: MessageReader | None = None
    version: Any = None
    """Version of the channel of messages at the last read."""

    def read(self, state: SavedState, reading: Reading) -> None:
        """Read the messages where a run would: at the input, and after the nodes that end a step."""
        if self.reader is None:
            self.version = state.versions.get("messages")
            self.reader = reader_of(_messages(state), _task(state, reading))
        elif not state.nodes_since(self.last).isdisjoint(reading.step_after):
            stepped = state.versions.get("messages") != self.version
            self.version = state.versions.get("messages")
            self.reader = self.reader.read(_messages(state), stepped=stepped)
        self.last = state

    def end(self, thread: str, reading: Reading, *, over: bool) -> Iterator[LoggedRun]:
        """Yield the call as a run, unless it was stopped before its first superstep."""
        if self.reader is None:
            return
        messages = _messages(self.last)
        trajectory = self.reader.read(messages, done=True).trajectory
        answered = bool(messages) and is_answer(messages[-1])
        cut_off = not answered and not self.last.finished
        yield LoggedRun(_origin(thread, self.last), trajectory, tuple(messages), self.number, over, cut_off)


def _without_history(thread: str, newest: SavedState, reading: Reading) -> Iterator[LoggedRun]:
    """Read a thread of which only the end of each call is saved (durability="exit"), or whose history was pruned."""
    messages = _messages(newest)
    yield from runs_of_conversation(
        messages, _origin(thread, newest), split=reading.turns != "one", task=_task(newest, reading),
        over=newest.finished,
    )  # fmt: skip


def _messages(state: SavedState) -> list[BaseMessage]:
    messages = state.values.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise UnreadableRecord(
            "the state has no list of `messages`: expected an agent with messages, as amc() wraps without trajectory="
        )
    return [as_message(message) for message in messages]


def _task(state: SavedState, reading: Reading) -> str:
    return task_of(state.values, reading.task)


def _origin(thread: str, state: SavedState) -> Origin:
    return Origin(thread, _where(thread), record=_visible(state.values), version=state.id)


def _visible(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith(("__", "branch:"))}


def _where(thread: str) -> str:
    return f"thread {thread}"
