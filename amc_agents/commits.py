"""Records of commit calls, and the deferred calls that `Run.commit` makes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol
from uuid import uuid4

from amc_agents.context import changed_context, particle_context
from amc_agents.errors import CommitError, ConfigurationError
from amc_agents.quoting import quoted

CommitStatus = Literal["not run", "may have run", "ran", "failed", "answered"]
"""State of a call of a commit tool. "failed": the tool raised, after it may have acted; "answered": a human said what
the result was."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Record of one call of a commit tool."""

    name: str
    """The tool, or the node."""
    args: Mapping[str, Any]
    call_id: str | None
    """Id of the model's tool call; None: code called the tool."""
    step: int | None
    """Number of steps that the calling particle had completed; None for a deferred call."""
    status: CommitStatus = "may have run"
    result: Any = None
    """The tool's result, if it ran."""
    error: str | None = None
    """The tool's error, if it failed."""

    def __str__(self) -> str:
        """The call and its status on one line."""
        args = ", ".join(f"{name}={quoted(value)}" for name, value in self.args.items())
        outcome = f" ({self.error})" if self.error else ""
        return f"{self.name}({args}): {self.status}{outcome}"


@dataclass(frozen=True, slots=True)
class CurrentCommit:
    """The commit call that runs now."""

    key: str
    """Identifies the call: the same in retries, after a restart, and when another process takes the run over."""


def current_commit() -> CurrentCommit:
    """Return the commit call in which the caller runs, for the idempotency key of a request.

    In a plain agent, or outside of a commit tool, the key is new in each call of this function.
    """
    commit: CurrentCommit | None = particle_context().commit
    return commit or CurrentCommit(uuid4().hex)


@contextmanager
def committing(key: str) -> Iterator[None]:
    """Let `current_commit` return this key inside the `with` block."""
    with changed_context(commit=CurrentCommit(key)):
        yield


class CommitTool(Protocol):
    """A LangChain tool."""

    name: str

    def invoke(self, input: Any) -> Any:
        """Call the tool."""
        ...

    async def ainvoke(self, input: Any) -> Any:
        """Call the tool."""
        ...


CommitTools = Sequence[CommitTool] | Mapping[str, CommitTool]
"""Tools, or name -> tool."""


_beginning = threading.Lock()
_begun: set[str] = set()
"""Ids of the calls that were begun in this process. They belong to no run, which can be copied and pickled."""


class DeferredCalls(list[Commit]):
    """The winner's calls of `Deferred` tools, in order, each with its outcome.

    They are made at most once, by this object or by a copy of it. Only a copy that was pickled before they were made,
    and is loaded in another process, does not know it.
    """

    def __init__(self, calls: Iterable[Commit] = ()) -> None:
        super().__init__(calls)
        self._id: str = calls._id if isinstance(calls, DeferredCalls) else uuid4().hex
        self._begun: bool = isinstance(calls, DeferredCalls) and calls._begun

    def prepare(
        self, tools: Sequence[CommitTool] | Mapping[str, CommitTool]
    ) -> list[tuple[CommitTool, dict[str, Any]]]:
        """Return the tool and the input of each call.

        Raises:
            ConfigurationError: a tool is missing.
        """
        named = tools if isinstance(tools, Mapping) else {tool.name: tool for tool in tools}
        missing = sorted({call.name for call in self} - named.keys())
        if missing:
            raise ConfigurationError(
                f"run.commit needs the tools of its calls: {', '.join(missing)} missing; given: "
                f"{', '.join(named) or 'none'}. Nothing was called"
            )
        return [
            (
                named[call.name],
                {
                    "type": "tool_call",
                    "name": call.name,
                    "args": dict(call.args),
                    "id": call.call_id or f"deferred-{place}",
                },
            )
            for place, call in enumerate(self)
        ]

    def begin(self) -> None:
        """Note that the calls are made now.

        Raises:
            ConfigurationError: they have been made before.
        """
        with _beginning:
            if self._begun or self._id in _begun:
                raise ConfigurationError(
                    "run.commit was called before on this run or a copy of it, and calls no tool twice: see "
                    f"run.deferred of that run for the outcomes (here: {'; '.join(map(str, self))})"
                )
            self._begun = True
            _begun.add(self._id)

    @contextmanager
    def recording(self, place: int) -> Iterator[list[Any]]:
        """Record a call before and after it is made; the body adds its result to the yielded list.

        Raises:
            CommitError: the call failed; the later calls are not made.
        """
        call, results = self[place], list[Any]()
        self[place] = replace(call, status="may have run")
        try:
            with committing(f"{self._id}-{place}"):
                yield results
        except BaseException as error:
            self[place] = replace(call, status="failed", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
            rest = "; ".join(map(str, self[place + 1 :])) or "none"
            raise CommitError(f"{self[place]}. It may have acted. Calls that were not made: {rest}") from error
        result = results[0]
        self[place] = replace(call, status="ran", result=getattr(result, "content", result))
