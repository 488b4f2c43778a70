"""Threads that do not delay the exit of the process, and a persistent background event loop for the sync entry points.

`graph.invoke` therefore works while another loop is running (a notebook). The connections of an async client belong to
the loop of their first use, so on this loop the caller's agents and models are used by their sync methods, in threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from amc_agents.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")

_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
"""Queued calls; None: the threads end."""


class DaemonThreads(ThreadPoolExecutor):
    """A pool of daemon threads: the process does not wait for them at exit, so a call that hangs cannot block it.

    The threads of `concurrent.futures` are joined at exit. The base class serves only the type check of an event loop's
    default executor. In a forked process the pool is empty and starts new threads.

    Args:
        most: maximum number of threads; they are started on demand.
        name: name of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self._most, self._name = most, name
        self._start_anew()
        _pools.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a thread of the pool."""
        future: Future[T] = Future()
        with self._submitting:
            if self._ended:
                raise RuntimeError("this pool of threads was shut down")
            self._calls.put((future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._started < self._most:
                self._started += 1
                thread = threading.Thread(target=_work, args=(self._calls, self._idle), name=self._name, daemon=True)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls. Running calls are not waited for, even with `wait`."""
        with self._submitting:
            self._ended = True
            while cancel_futures and not self._calls.empty():
                if (call := self._calls.get()) is not None:
                    call[0].cancel()
            self._calls.put(None)

    def _start_anew(self) -> None:
        self._submitting = threading.Lock()
        self._calls: _Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._ended = False
        # The threads end when the pool is garbage-collected.
        weakref.finalize(self, self._calls.put, None).atexit = False


def in_forked_process(start_anew: Callable[[], None]) -> None:
    """Register a function to call in every forked process, where only the forking thread exists."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=start_anew)


def lock_across_forks() -> threading.Lock:
    """Return a lock that a fork waits for, so that it is never held by a missing thread in the forked process."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


def _work(calls: _Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        future, run = call
        if future.set_running_or_notify_cancel():
            try:
                result = run()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # Release the call's objects before waiting for the next call.
        del call, future, run
        idle.release()
    calls.put(None)


def _empty_pools() -> None:
    for pool in [*_pools]:
        pool._start_anew()


_pools: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()
in_forked_process(_empty_pools)


STOPPING_LIMIT_S = 10.0
"""Maximum time in seconds that an interrupted caller waits for its work to stop."""

_END: Final = object()
_started: ContextVar[_Started | None] = ContextVar("amc_started_in_background", default=None)

_lock = threading.RLock()  # Reentrant: the garbage collector may close a dropped world in any line.
_loop: asyncio.AbstractEventLoop | None = None
_workers = 0


def run_in_background(work: Coroutine[Any, Any, T], *, n_workers: int) -> T:
    """Run a coroutine on the background loop and wait for its result.

    Args:
        work: the coroutine; it runs with the caller's context variables.
        n_workers: minimum number of threads of the loop's executor, for blocking tools and models.

    Raises:
        ConfigurationError: called on the background loop, which would wait for itself.
    """
    loop = _background_loop(n_workers)
    if on_background_loop():
        work.close()
        raise ConfigurationError(
            "a sync call (invoke, stream, run) was made from a coroutine of the library's own event loop, which "
            "would wait for itself: use the async form there (ainvoke, astream, arun)"
        )
    tasks: list[asyncio.Task[T]] = []
    ended = threading.Event()

    started = _started.get()

    def start() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(lambda _: ended.set())
        if started is not None:
            started.add(tasks[0])

    def stop() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # Interrupted before the start.
            work.close()
            ended.set()

    try:
        loop.call_soon_threadsafe(start)
        ended.wait()
    except BaseException:
        # Ctrl-C in the caller stops the work. Its resources can be closed once it no longer runs.
        loop.call_soon_threadsafe(stop)
        ended.wait(STOPPING_LIMIT_S)
        raise
    return tasks[0].result()


def read_in_thread(events: Generator[T, None, None]) -> Iterator[T]:
    """Read a stream in another thread, so that its reader can be interrupted or stop while it waits for an event.

    If LangGraph streams while nodes run, it waits for the nodes however the stream ends. Here their background work is
    cancelled first.
    """
    context, started = copy_context(), _Started()
    context.run(_started.set, started)
    thread = DaemonThreads(1, "amc-stream")

    def next_event() -> Any:
        return next(events, _END)

    try:
        while True:
            event = thread.submit(context.run, next_event).result()
            if event is _END:
                return
            yield event
    finally:
        _background_loop(1).call_soon_threadsafe(started.stop)
        closing = thread.submit(context.run, events.close)
        thread.shutdown()
        if not on_background_loop():
            with suppress(TimeoutError):
                closing.result(STOPPING_LIMIT_S)


async def read_sync(events: Iterator[T]) -> AsyncGenerator[T, None]:
    """Read a sync stream from async code, in a thread of its own and with the caller's context variables.

    Closing the result closes the stream; an exception that is thrown into the result is thrown into the stream. If the
    reader is cancelled, the stream is closed in its thread after its next event, and nothing waits for it.
    """
    thread, end = DaemonThreads(1, "amc-stream"), _END

    def advance(step: Callable[[], T]) -> Any:
        try:
            return step()
        except StopIteration:
            return end

    step, waiting = partial(next, events), False
    try:
        while True:
            waiting = True
            event = await asyncio.get_running_loop().run_in_executor(thread, copy_context().run, advance, step)
            waiting = False
            if event is end:
                return
            try:
                yield event
                step = partial(next, events)
            except Exception as thrown:
                step = partial(cast(Any, events).throw, thrown)
    finally:
        closing = thread.submit(copy_context().run, cast(Any, events).close)
        thread.shutdown()
        if not waiting:  # A cancellation must not cancel it: LangGraph hangs when the collector closes its stream.
            await asyncio.shield(asyncio.wrap_future(closing))


async def in_new_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a blocking call in a new thread with the caller's context variables.

    All threads of the event loop may already wait for this answer: sync nodes that call a deciding model, for example.
    """
    thread = DaemonThreads(1, "amc-call")
    try:
        work = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown()


async def close_connections_at_end() -> None:
    """Close the connections that clients still keep open when `asyncio.run` ends the running loop.

    Otherwise a client takes such a connection for a usable one in the next `asyncio.run`, and fails: once for a plain
    agent, and once for each particle after a run of N.
    """
    loop = asyncio.get_running_loop()
    if loop not in _closing:
        _closing[loop] = _at_end_of_loop()
        await anext(_closing[loop])


async def _at_end_of_loop() -> AsyncGenerator[None, None]:
    try:
        yield
    finally:  # `asyncio.run` closes all async generators at its end.
        for transport in [*getattr(asyncio.get_running_loop(), "_transports", {}).values()]:
            transport.close()
        await asyncio.sleep(0)  # The transports close their sockets in the loop's next round.


_closing: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = WeakKeyDictionary()


def start_in_background(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine on the background loop without waiting for it."""
    asyncio.run_coroutine_threadsafe(work, _background_loop(1))


def background_loop(n_workers: int) -> asyncio.AbstractEventLoop:
    """Return the background loop, which runs; `n_workers` as for `run_in_background`."""
    return _background_loop(n_workers)


def on_background_loop() -> bool:
    """True if the caller runs on the background loop, which must not wait for itself."""
    return _loop is not None and _running_loop() is _loop


class _Started:
    """The running tasks of a stream. Only used on the background loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._stopped:
            task.cancel()

    def stop(self) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()


def _background_loop(n_workers: int) -> asyncio.AbstractEventLoop:
    global _loop, _workers
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _keep_clients_apart()
            threading.Thread(target=_loop.run_forever, name="amc-agents", daemon=True).start()
        _keep_embeddings_apart()
        if n_workers > _workers:
            _workers = max(n_workers, 32)
            _loop.call_soon_threadsafe(_loop.set_default_executor, DaemonThreads(_workers, "amc-agents"))
        return _loop


def _keep_clients_apart() -> None:
    """Make every chat model use its sync client on this loop, also where a caller's coroutine calls it.

    Models are held by nodes, closures and other models, which cannot be searched for them.
    """
    from langchain_core.language_models import BaseChatModel

    agenerate, astream = BaseChatModel._agenerate_with_cache, BaseChatModel.astream

    @wraps(agenerate)
    async def agenerate_apart(
        model: BaseChatModel, messages: Any, stop: Any = None, run_manager: Any = None, **call: Any
    ) -> Any:
        if not on_background_loop() or getattr(model, "fits_any_loop", False):
            return await agenerate(model, messages, stop=stop, run_manager=run_manager, **call)
        sync = None if run_manager is None else run_manager.get_sync()
        return await in_new_thread(model._generate_with_cache, messages, stop=stop, run_manager=sync, **call)

    @wraps(astream)
    async def astream_apart(model: BaseChatModel, input: Any, config: Any = None, **call: Any) -> AsyncIterator[Any]:
        apart = on_background_loop() and not getattr(model, "fits_any_loop", False)
        chunks: Any = read_sync(model.stream(input, config, **call)) if apart else astream(model, input, config, **call)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    if not hasattr(agenerate, "__wrapped__"):  # Not again in a forked process.
        setattr(BaseChatModel, "_agenerate_with_cache", agenerate_apart)  # noqa: B010 (mypy refuses the assignment)
        setattr(BaseChatModel, "astream", astream_apart)  # noqa: B010


def _keep_embeddings_apart() -> None:
    """Make embeddings use their sync client on this loop: those of a store, for example.

    Each class has its own coroutines, and may be imported after the loop's start. Only integrations' classes are
    changed, which are pydantic models: others call these, or may have no sync form, as a function that LangGraph wraps.
    """
    from langchain_core.embeddings import Embeddings
    from pydantic import BaseModel

    classes = Embeddings.__subclasses__()
    for each in classes:
        classes += each.__subclasses__()
        for name in ("embed_documents", "embed_query"):
            coroutine = vars(each).get(f"a{name}")
            if coroutine is not None and issubclass(each, BaseModel) and not hasattr(coroutine, "__wrapped__"):
                setattr(each, f"a{name}", _apart(name, coroutine))


def _apart(name: str, coroutine: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(coroutine)
    async def apart(embeddings: Any, text: Any, **call: Any) -> Any:
        if not on_background_loop():
            return await coroutine(embeddings, text, **call)
        return await in_new_thread(getattr(embeddings, name), text, **call)

    return apart


def _start_anew() -> None:
    # The loop's thread does not exist in a forked process.
    global _lock, _loop, _workers
    if _loop is not None:
        _parents_loops.append(_loop)
    _lock, _loop, _workers = threading.RLock(), None, 0


_parents_loops: list[asyncio.AbstractEventLoop] = []
"""Loops of the parent process. They are never closed here: parent and child share their selectors."""
in_forked_process(_start_anew)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
