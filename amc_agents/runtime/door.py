"""Hold each particle at its commit tools, wherever its agent calls them.

Every tool call of a particle passes the particle's `Door`. A commit call raises an interrupt there, unless the run has
opened the door for this call; LangGraph then ends the agent's stream at a checkpoint. When the agent resumes,
LangGraph runs the interrupted nodes again from their start: calls that were complete get their recorded result, and a
commit call that failed fails again with the recorded error.

Tools are called from nodes, closures, middleware and other tools, which cannot be copied, and a callback of LangChain
can refuse a call but not answer it with a recorded result. `watch_tools` therefore extends five methods of other
packages once per process; outside of particles they do nothing else. Each keeps a promise, which a test shows:

| method | promise | test in tests/population |
|---|---|---|
| `BaseTool.run`, `arun` | a commit runs once, wherever the agent calls it | commits/test_commits.py |
| `ainvoke` of sync tools | a call beside a commit is made although its thread starts late | commits/test_deferred.py |
| `Thread.start` | calls in threads of a tool are counted, bounded and seeded | test_own_threads.py |
| `ThreadPoolExecutor.submit` | so are calls in a pool that other particles use too | test_own_threads.py |

(`concurrency.background` extends chat models and embeddings, which then use their sync clients on the library's own
loop: tests/population/test_event_loops.py.)
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.runtime import get_runtime
from langgraph.types import Interrupt
from typing_extensions import override

from amc_agents.commits import committing
from amc_agents.concurrency.background import run_in_background
from amc_agents.context import change_context, changed_context, particle_context
from amc_agents.errors import BudgetExhausted, CommitError
from amc_agents.quoting import quoted
from amc_agents.runtime.effects import Deferred, Effect, attempts_of, declared_effect

_MARK = "amc_door"
_UNKNOWN = object()
HOLD = "hold"
"""The verdict that holds a call until one particle is selected to make it."""


class CallKey(NamedTuple):
    """Identifies a call among those of a superstep; the same when LangGraph runs the superstep again."""

    place: str
    """Checkpoint namespace of the LangGraph task that calls."""
    name: str
    call_id: str | None
    """Id of the model's tool call; None: code calls the tool, or it is a node."""
    args: str
    """The arguments as JSON; empty where the id is enough."""
    nth: int
    """Number of equal calls before it; 0 for a commit that a model calls, as its id names the call."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call of a commit tool that has not run."""

    key: CallKey
    name: str
    args: Mapping[str, Any]
    """The arguments without those that LangGraph injects."""
    once: str = ""
    """The idempotency key with which the call is let through."""

    @property
    def call_id(self) -> str | None:
        """Id of the model's tool call."""
        return self.key.call_id


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a call that was let through."""

    status: Literal["may have run", "ran", "failed"]
    """"may have run": it has begun, and its end is not known; "failed": the tool raised, after it may have acted."""
    result: Any = None
    error: str | None = None


class _Attempt:
    """A start or a resumption of an agent."""

    abandoned = False
    """Whether its particle has failed or was cancelled, although a thread of it may go on."""


@dataclass
class Door:
    """What a particle may call, and what its current superstep has called.

    Tools in threads use it too, so its changes hold a lock.
    """

    effects: Mapping[str, Effect] = field(default_factory=dict)
    """Effects of tools by name; a tool that is not among them has its own declaration."""
    deferred: tuple[PendingCall, ...] = ()
    """Calls recorded for the time after the search, in order."""
    results: dict[CallKey, Any] = field(default_factory=dict)
    """Results of the complete calls of this superstep."""
    waiting: dict[CallKey, PendingCall] = field(default_factory=dict)
    """Commit calls that were stopped since the agent started or resumed."""
    opened: dict[CallKey, PendingCall] = field(default_factory=dict)
    """Commit calls of this superstep that may run, or have run."""
    failures: dict[CallKey, tuple[Exception, ...]] = field(default_factory=dict)
    """The errors of each commit call of this superstep, one for each time that it ran."""
    outcomes: dict[CallKey, CallOutcome] = field(default_factory=dict)
    """Outcomes of the opened calls that have begun."""
    judge: Callable[[str, Mapping[str, Any]], str | None] | None = None
    """Called with the name and the arguments of each call: None lets it pass, `HOLD` holds it like a commit call, and
    any other text is its answer instead."""
    ended_by: PendingCall | None = None
    """The deferred call without a result that ends the particle."""
    _attempt: _Attempt | None = None
    """The current start or resumption; None: the agent is held."""
    _counts: Counter[tuple[CallKey, int]] = field(default_factory=Counter)
    _tries: Counter[CallKey] = field(default_factory=Counter)
    _asked: set[Future[None]] = field(default_factory=set)
    _running: set[Future[None]] = field(default_factory=set)
    _committing: dict[CallKey, Future[None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(self) -> Door:
        """Return the door of an offspring, which shares the past."""
        return Door(
            self.effects,
            self.deferred,
            dict(self.results),
            dict(self.waiting),
            dict(self.opened),
            dict(self.failures),
        )

    def begin_attempt(self) -> None:
        """Prepare for a start or a resumption of the agent, in its context."""
        self.waiting, self.ended_by = {}, None
        self._forget_numbers()
        self._attempt = _Attempt()
        change_context(attempt=self._attempt)

    async def end_attempt(self) -> None:
        """Admit no more calls after an interrupt, and wait for those that have begun.

        A node that is interrupted by a call leaves the calls beside it running, or waiting for a thread. The latter
        were asked for at the same time, so they are admitted.
        """
        with self._lock:
            asked = list(self._asked)
        await asyncio.gather(*map(asyncio.wrap_future, asked))
        with self._lock:
            self._attempt = None
        await asyncio.gather(*map(asyncio.wrap_future, self.running()))

    def end_superstep(self) -> None:
        """Forget the calls of a complete superstep."""
        self.results, self.opened, self.failures = {}, {}, {}
        self._forget_numbers()

    def _forget_numbers(self) -> None:
        self._counts.clear()
        self._tries.clear()

    def shut(self) -> None:
        """Admit no more calls of tools and models: the particle has failed or was cancelled, but its threads go on."""
        with self._lock:
            if self._attempt is not None:
                self._attempt.abandoned = True
            self._attempt = None

    async def commits_ended(self) -> bool:
        """Wait for the commit calls that have begun, however long they take, and return whether there were any."""
        with self._lock:
            committing = list(self._committing.values())
        await asyncio.gather(*map(asyncio.wrap_future, committing))
        return bool(committing)

    def running(self) -> list[Future[None]]:
        """Return the calls that have begun and have not ended."""
        with self._lock:
            return list(self._running)

    @property
    def passed_over(self) -> PendingCall | None:
        """A call that was stopped since the agent started or resumed; there is none after a complete superstep."""
        return self.ended_by or next(iter(self.waiting.values()), None)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Count a call from the moment at which the agent asks for it. A tool in a thread arrives at the door later."""
        asked = _begun()
        with self._lock:
            self._asked.add(asked)
        try:
            yield
        finally:
            with self._lock:
                self._asked.discard(asked)
            asked.set_result(None)

    @property
    def asking(self) -> PendingCall | None:
        """The commit call that was let through and asks a human before it acts."""
        return next((call for key, call in self.opened.items() if key not in self.results), None)

    def effect_of(self, tool: BaseTool) -> Effect | None:
        """Return the effect of a tool."""
        return self.effects.get(tool.name) or declared_effect(tool)

    @contextmanager
    def visit(
        self, name: str, effect: Effect | None, args: Callable[[], Mapping[str, Any]], call_id: str | None
    ) -> Iterator[Visit]:
        """Let a call pass, answer it with a recorded result, or stop it by an interrupt.

        Args:
            name: of the tool or node.
            effect: of the tool or node.
            args: returns the arguments without those that LangGraph injects.
            call_id: id of the model's tool call.
        """
        if (around := _visit_around()) is not None and around.in_commit:
            yield Visit()
            return
        verdict = None if self.judge is None else self.judge(name, args())
        if verdict is not None and verdict != HOLD:
            yield Visit(as_result(verdict, name, call_id))
            return
        effect = effect if verdict is None or attempts_of(effect) else "commit"
        visit, key = self._arrive(name, effect, args, call_id)
        if visit.answered:
            yield visit
            return
        with self._recording(visit, key, commit=attempts_of(effect) > 0):
            yield visit

    def _arrive(
        self, name: str, effect: Effect | None, args: Callable[[], Mapping[str, Any]], call_id: str | None
    ) -> tuple[Visit, CallKey]:
        attempts = attempts_of(effect)
        acts = attempts > 0 or isinstance(effect, Deferred)
        given = args() if acts or call_id is None else {}
        first = CallKey(_place(), name, call_id, _as_text(given), 0)
        with self._lock:
            if self._attempt is not particle_context().attempt:  # A late call of a node that was interrupted.
                raise _interrupt(PendingCall(first, name, given))
            key = self._numbered(first, acts=acts)
            if key in self.results:
                return Visit(self.results[key]), key
            call = PendingCall(key, name, given)
            if isinstance(effect, Deferred):
                return self._defer(call, effect), key
            running = _begun()
            if attempts:
                self._begin_commit(call, attempts, running)
            self._running.add(running)
        return Visit(running=running), key

    def _numbered(self, first: CallKey, *, acts: bool) -> CallKey:
        """Tell equal calls apart, unless one is the other again: a retry pays once."""
        if acts and first.call_id is not None:
            return first
        # When LangGraph runs a node again within a superstep, by a RetryPolicy, its commits are the same calls.
        counted = first, _node_attempt() if acts else 0
        key = first._replace(nth=self._counts[counted])
        self._counts[counted] += 1
        return key

    def _begin_commit(self, call: PendingCall, attempts: int, running: Future[None]) -> None:
        """Let a commit call run if it was opened for it; stop it by an interrupt, or by the error that it had before.

        Raises:
            GraphInterrupt: it waits, also for a further attempt.
            CommitError: it runs already, or may have run.
            Exception: the recorded error.
        """
        key, failures = call.key, self.failures.get(call.key, ())
        tried = self._tries[key]
        self._tries[key] += 1
        if tried < len(failures) or len(failures) >= attempts:
            self._may_be_called_again(key)
            raise failures[min(tried, len(failures) - 1)]
        if key in self._committing or (key in self.outcomes and self.outcomes[key].status == "may have run"):
            raise CommitError(_UNCERTAIN.format(name=quoted(call.name)))
        if key not in self.opened:
            self.waiting[key] = call
            raise _stopping(call)
        self.outcomes[key] = CallOutcome("may have run")
        self._committing[key] = running

    def _may_be_called_again(self, key: CallKey) -> None:
        """Give the next equal call the number of one that failed: it is a retry."""
        if key.call_id is None:
            counted = key._replace(nth=0), _node_attempt()
            self._counts[counted] = min(self._counts[counted], key.nth)

    def _defer(self, call: PendingCall, effect: Deferred) -> Visit:
        if not effect.has_result:
            self.ended_by = call
            raise _stopping(call)
        self.deferred += (call,)
        self.results[call.key] = as_result(effect.result_of(call.args), call.name, call.call_id)
        return Visit(self.results[call.key])

    @contextmanager
    def _recording(self, visit: Visit, key: CallKey, *, commit: bool) -> Iterator[None]:
        visit.in_commit = commit
        try:
            once = committing(self.opened[key].once) if commit else nullcontext()
            with once, visit.insisting(key.place):
                yield
        except GraphBubbleUp:  # An interrupt within the tool: LangGraph will run it again.
            self.outcomes.pop(key, None)
            raise
        except BaseException as error:
            if commit:
                self._record_failure(key, error)
            raise
        else:
            self.results[key] = visit.result
            if commit:
                self.outcomes[key] = CallOutcome("ran", visit.result)
        finally:
            with self._lock:
                self._running.discard(visit.running)
                self._committing.pop(key, None)
            visit.running.set_result(None)

    def _record_failure(self, key: CallKey, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, Exception):  # It was cancelled, and its thread or its server may go on.
            self.outcomes[key] = CallOutcome("may have run", error=text)
            return
        with self._lock:
            self.outcomes[key] = CallOutcome("failed", error=text)
            self.failures[key] = (*self.failures.get(key, ()), error)
            self.opened.pop(key, None)
            self._may_be_called_again(key)


class Visit:
    """A call at the door.

    Args:
        result: the recorded result, with which the call is answered instead of running.
        running: done when the call has ended.
    """

    def __init__(self, result: Any = _UNKNOWN, running: Future[None] | None = None) -> None:
        self.running: Future[None] = Future() if running is None else running
        self.answered = result is not _UNKNOWN
        self.result = None if result is _UNKNOWN else result
        self.around = _visit_around()
        self.in_commit: bool = self.around is not None and self.around.in_commit
        """Whether a commit call makes this call, or is this call: the door has then let it through already."""
        self.stopped: list[PendingCall] = []
        """The calls within it that were stopped by an interrupt."""

    @contextmanager
    def insisting(self, place: str) -> Iterator[None]:
        """Interrupt after the block if a call was stopped in it, and code around the call swallowed the interrupt.

        Args:
            place: of this visit; in another place, an inner agent has gone on, and cannot be interrupted any more.
        """
        with changed_context(visit=self):
            try:
                yield
            except GraphBubbleUp:
                raise
            except Exception:
                self._insist(place)
                raise
            else:
                self._insist(place)

    def _insist(self, place: str) -> None:
        for call in self.stopped:
            if call.key.place == place:
                raise _interrupt(call)


class NodeAtDoor(Runnable[Any, Any]):
    """A node of an agent with commits. One that is a commit itself is held before it.

    Args:
        name: of the node.
        inner: the node's runnable.
        effect: of the node's own code, if it is a commit.
    """

    def __init__(self, name: str, inner: Runnable[Any, Any], effect: Effect | None) -> None:
        self.node_name = name
        self._inner, self._effect = inner, effect

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._visit() as visit:
            if not visit.answered:
                visit.result = self._inner.invoke(input, config, **kwargs)
        return visit.result

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._visit() as visit:
            if not visit.answered:
                visit.result = await self._inner.ainvoke(input, config, **kwargs)
        return visit.result

    @contextmanager
    def _visit(self) -> Iterator[Visit]:
        door = current_door()
        if door is None:
            yield Visit()
        elif self._effect is not None:
            with door.visit(self.node_name, self._effect, dict, None) as visit:
                yield visit
        else:
            visit = Visit()
            with visit.insisting(_place()):
                yield visit


def current_door() -> Door | None:
    """Return the door of the particle whose agent runs this code; None outside of particles."""
    door: Door | None = particle_context().door
    return door


def in_particle() -> bool:
    """Whether a particle's agent runs this code."""
    return current_door() is not None


def _visit_around() -> Visit | None:
    visit: Visit | None = particle_context().visit
    return visit


def is_abandoned() -> bool:
    """Whether this code is a thread of a particle that has failed or was cancelled."""
    attempt: _Attempt | None = particle_context().attempt
    return attempt is not None and attempt.abandoned


def is_of_a_door(interrupt: Interrupt) -> bool:
    """Whether a door raised the interrupt, and not the agent's own `interrupt()`."""
    return isinstance(interrupt.value, Mapping) and _MARK in interrupt.value


def as_result(value: Any, name: str, call_id: str | None) -> Any:
    """Return a value as the tool would: a `ToolMessage` if a model called it, else the value."""
    if call_id is None:
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return ToolMessage(text, name=name, tool_call_id=call_id)


def watch_tools() -> None:
    """Make every tool pass the door of the particle that calls it, in the particle's own threads too."""
    if hasattr(BaseTool.run, _MARK):
        return
    _watch_threads()
    run, arun = BaseTool.run, BaseTool.arun

    @functools.wraps(run)
    def run_at_door(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        door = current_door()
        if door is None:
            return run(tool, tool_input, *args, **kwargs)
        with _visit(door, tool, tool_input, kwargs) as visit:
            if not visit.answered:
                if isinstance(tool, StructuredTool | Tool) and tool.func is None:  # Of MCP, for example.
                    visit.result = run_in_background(arun(tool, tool_input, *args, **kwargs), n_workers=1)
                else:
                    visit.result = run(tool, tool_input, *args, **kwargs)
        return visit.result

    @functools.wraps(arun)
    async def arun_at_door(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        door = current_door()
        if door is None:
            return await arun(tool, tool_input, *args, **kwargs)
        with _visit(door, tool, tool_input, kwargs) as visit:
            if not visit.answered:
                visit.result = await arun(tool, tool_input, *args, **kwargs)
        return visit.result

    setattr(run_at_door, _MARK, True)
    setattr(BaseTool, "run", run_at_door)  # noqa: B010 (mypy refuses the assignment of a method)
    setattr(BaseTool, "arun", arun_at_door)  # noqa: B010
    # Tools without a coroutine go to a thread from here, past `arun`.
    for kind in (StructuredTool, Tool):
        setattr(kind, "ainvoke", _announced(kind.ainvoke))  # noqa: B010


def _watch_threads() -> None:
    """Let the threads that a particle starts inherit its context, as `-X thread_inherit_context` does in Python 3.14.

    Its calls in them then find its door, its budget and its world.
    """
    start: Callable[..., None] = threading.Thread.start
    submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    @functools.wraps(start)
    def start_in_context(thread: threading.Thread) -> None:
        if current_door() is not None:
            run, context = thread.run, copy_context()

            def run_in_context() -> None:
                # Nobody could catch these: the node is interrupted after the thread, and the run ends by its budget.
                with suppress(GraphInterrupt, BudgetExhausted):
                    context.run(run)

            setattr(thread, "run", run_in_context)  # noqa: B010 (mypy refuses the assignment of a method)
        start(thread)

    @functools.wraps(submit)
    def submit_in_context(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        if current_door() is None:
            return submit(pool, work, *args, **options)
        # The pool may start a worker here, which then works for others too: it must not inherit the context.
        return Context().run(submit, pool, copy_context().run, work, *args, **options)

    setattr(threading.Thread, "start", start_in_context)  # noqa: B010
    setattr(ThreadPoolExecutor, "submit", submit_in_context)  # noqa: B010


def _begun() -> Future[None]:
    """Return a future that a waiter's own cancellation, such as a time limit, does not cancel."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def _announced(ainvoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ainvoke)
    async def ainvoke_for_door(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        door = current_door()
        with nullcontext() if door is None else door.asked():
            return await ainvoke(tool, *args, **kwargs)

    return ainvoke_for_door


def _visit(door: Door, tool: BaseTool, tool_input: Any, options: Mapping[str, Any]) -> Any:
    return door.visit(tool.name, door.effect_of(tool), lambda: _own_args(tool, tool_input), options.get("tool_call_id"))


def _own_args(tool: BaseTool, tool_input: Any) -> Mapping[str, Any]:
    """Return the arguments that the model gives."""
    if not isinstance(tool_input, Mapping):
        return {"input": tool_input}
    return {name: value for name, value in tool_input.items() if name in tool.args}


def _place() -> str:
    """Return the checkpoint namespace of the calling task; "" if its code hides it from LangGraph."""
    try:
        return str(get_config()["configurable"].get("checkpoint_ns", ""))
    except RuntimeError:
        return ""


def _node_attempt() -> int:
    """Return how often LangGraph has run the calling node in this superstep."""
    try:
        info = get_runtime().execution_info
    except RuntimeError:
        return 1
    return 1 if info is None else info.node_attempt


def _as_text(args: Mapping[str, Any]) -> str:
    return json.dumps(args, sort_keys=True, ensure_ascii=False, default=str) if args else ""


def _stopping(call: PendingCall) -> GraphInterrupt:
    """Return the interrupt that stops a call, and note it at the calls and the node around it."""
    visit = _visit_around()
    while visit is not None:
        visit.stopped.append(call)
        visit = visit.around
    return _interrupt(call)


def _interrupt(call: PendingCall) -> GraphInterrupt:
    # `interrupt()` would match answers to interrupts by their order in the node, also to the agent's own interrupts.
    shown = {_MARK: call.name, "args": dict(call.args), "id": call.call_id}
    return GraphInterrupt((Interrupt.from_ns(shown, ns=call.key.place),))


_UNCERTAIN = (
    "the commit call {name} was asked for again while it runs or after it was cut off: it may have run, and is not run "
    "again"
)
