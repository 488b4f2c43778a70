"""The background searches of a shadow: the other particles of a call that was already answered.

A search never delays a call: the queue of each event loop is bounded, and a gate makes its nodes give way to calls.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakSet

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from typing_extensions import override

from amc_agents.concurrency.background import background_loop, on_background_loop, run_in_background
from amc_agents.concurrency.gather import to_its_end
from amc_agents.context import change_context, particle_context
from amc_agents.critics.adapting import checked_values
from amc_agents.messages import MessageReader
from amc_agents.operations.rollout.call_records import Agent, spending
from amc_agents.population.features.store_views import ParticleStore
from amc_agents.population.graph import AmcGraph
from amc_agents.prices import Rates
from amc_agents.run import Run
from amc_agents.runtime.world import StartedWorld
from amc_agents.types import Forkable, Step, Task, Trajectory
from amc_agents.usage import Meter, metering

PATIENCE_S = 1.0
"""Maximum time that a node of a search waits for the calls in progress."""
TURN_S = 0.002
"""Minimum time between the starts of two nodes."""
LONGEST_PAUSE_S = 0.1
"""Maximum time between two looks at the calls in progress."""
ENDING_LIMIT_S = 5.0
"""Maximum time that `close` waits for cancelled work."""


class Job(Protocol):
    """Work to do after a call."""

    context: Context
    """The context in which it runs."""

    async def run(self) -> None:
        """Do the work; must not raise."""

    async def discard(self) -> None:
        """Release what the job holds, without doing the work."""


class Gate:
    """Counts the calls in progress, for which background work waits."""

    def __init__(self) -> None:
        self._calls = 0
        self._next_turn = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while the block runs."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    async def give_way(self) -> None:
        """Wait until no call is in progress, for at most `PATIENCE_S`, and for a turn.

        Turns are short, so that a call that begins finds at most a node or two of a search at work.
        """
        loop, pause = asyncio.get_running_loop(), TURN_S
        until = loop.time() + PATIENCE_S
        while True:
            now = loop.time()
            turn = max(now, self._next_turn)
            self._next_turn = turn + TURN_S
            await asyncio.sleep(turn - now)
            if not self._calls or loop.time() >= until:
                return
            # Calls are on any thread or loop, so the wait polls, less and less often.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


class GivingWay(Runnable[Any, Any]):
    """A node of a search, which waits for the calls in progress before it runs."""

    def __init__(self, inner: Runnable[Any, Any], gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._inner.invoke(input, config, **kwargs)

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        await self._gate.give_way()
        return await self._inner.ainvoke(input, config, **kwargs)


class Queue:
    """The jobs of one event loop, done one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.loop, self._most = loop, most
        self._jobs: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits."""
        return bool(self._jobs) or (self._task is not None and not self._task.done())

    def add(self, job: Job) -> bool:
        """Add a job; False if the queue is full or its loop is closed."""
        if len(self._jobs) >= self._most:
            return False
        self._jobs.append(job)
        try:
            self.loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            return False
        return True

    async def end(self, timeout: float | None) -> None:
        """Wait for the jobs; after `timeout` seconds, cancel the running job and discard the others."""
        await asyncio.sleep(0)  # Jobs that were just added start first.
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=timeout)
            task.cancel()
            await asyncio.wait([task], timeout=ENDING_LIMIT_S)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._jobs:
                job = self._jobs.popleft()
                await asyncio.create_task(job.run(), context=job.context)
        finally:
            while self._jobs:
                await to_its_end(self._jobs.popleft().discard())


class Background:
    """The queues of all event loops on which calls were made.

    The jobs of async calls run on the caller's loop, because clients of models cannot be shared between loops; those of
    sync calls run on the library's loop.

    Args:
        most: maximum number of jobs that wait, per loop.
        n_workers: minimum number of threads of the library's loop, for blocking tools and models.
    """

    def __init__(self, most: int, n_workers: int) -> None:
        self._n_workers = n_workers
        self._most, self._queues = most, dict[asyncio.AbstractEventLoop, Queue]()
        self._lock = threading.Lock()
        self._discarding: set[asyncio.Task[None]] = set()
        self.closed = False
        _all.add(self)

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits, on any loop."""
        return any(queue.busy for queue in [*self._queues.values()])

    def add(self, job: Job) -> bool:
        """Run a job after the jobs that wait; False if it was refused, and then holds what it held."""
        loop = _running_loop() or background_loop(self._n_workers)
        with self._lock:
            if self.closed:
                return False
            for old in [each for each in self._queues if each.is_closed()]:
                del self._queues[old]
            queue = self._queues.setdefault(loop, Queue(loop, self._most))
        return queue.add(job)

    def discard(self, job: Job) -> None:
        """Release what a job holds that was not added."""
        loop = _running_loop() or background_loop(self._n_workers)

        def start() -> None:
            task = loop.create_task(job.discard())
            self._discarding.add(task)
            task.add_done_callback(self._discarding.discard)

        loop.call_soon_threadsafe(start)

    async def aclose(self, timeout: float | None = None) -> None:
        """Accept no more jobs, and wait for those of this loop and of loops in other threads."""
        self.closed = True
        await asyncio.gather(*(self._end(queue, timeout) for queue in [*self._queues.values()]))

    def close(self, timeout: float | None = None) -> None:
        """Like `aclose`, from sync code."""
        self.closed = True
        if any(not queue.loop.is_closed() for queue in self._queues.values()):
            run_in_background(self.aclose(timeout), n_workers=1)

    async def _end(self, queue: Queue, timeout: float | None) -> None:
        if queue.loop is asyncio.get_running_loop():
            await queue.end(timeout)
        elif queue.loop.is_running():
            ended: Awaitable[None] = asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(queue.end(timeout), queue.loop)
            )
            await ended


_all: WeakSet[Background] = WeakSet()


@atexit.register
def _close_all() -> None:
    for background in [*_all]:
        if not on_background_loop():
            with suppress(Exception):
                background.close(timeout=0.0)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass
class Call:
    """A sampled call, as it was before the plain agent acted."""

    run_id: str
    thread: str
    """The thread's id; "" without one."""
    given: Any
    """The input."""
    before: Mapping[str, Any]
    """The thread's state before the call; empty without a checkpointer."""
    world: Forkable | None
    """A fork of the world before the call."""
    task: Task | None
    config: RunnableConfig
    options: Mapping[str, Any]
    """The run-time context of the call, if any."""
    store: BaseStore | None = None
    """The agent's store."""


class Book(Protocol):
    """Keeps what searches find."""

    def keep(self, run_id: str, found: Mapping[str, Any]) -> None:
        """Add to the record of a call."""


@dataclass
class Search:
    """The job that runs after a sampled call."""

    searcher: Searcher
    book: Book
    call: Call
    served: Mapping[str, Any]
    """The final state of the plain agent."""
    context: Context

    async def run(self) -> None:
        """Search, compare with the served answer, and record what was found; a failure is recorded too."""
        try:
            try:
                found = await self.searcher.search(self.call, self.served)
            except Exception as error:
                found = {"search_failed": f"{type(error).__name__}: {error}"[:300]}
            except BaseException:
                self.book.keep(self.call.run_id, {"search_failed": "cancelled: the process or its loop ended"})
                raise
            self.book.keep(self.call.run_id, found)
        finally:
            await self.discard()

    async def discard(self) -> None:
        """Close the fork of the world."""
        if self.call.world is not None:
            with suppress(Exception):
                await self.call.world.close()


class Searcher:
    """Runs the other N - 1 particles of a call up to their first commit call, question or end.

    Args:
        with_world: the `amc()` graph for calls that have a world; None: the agent's tools need none.
        without_world: the graph for other calls; None: the agent's tools need a world.
        gate: makes the search give way to calls.
        prices: dollars by model.
    """

    def __init__(
        self,
        with_world: AmcGraph,
        without_world: AmcGraph | None,
        gate: Gate,
        prices: Mapping[str, Rates] | None,
    ) -> None:
        self.wrapped = with_world.wrapped
        self.needs_world = without_world is None
        self._with_world = to_first_door(with_world, gate)
        self._without_world = None if without_world is None else to_first_door(without_world, gate)
        effects = self.wrapped.effects.tools
        self._commit_tools = frozenset(name for name, effect in effects.items() if effect not in ("read", "world"))
        self._prices = prices

    async def search(self, call: Call, served: Mapping[str, Any]) -> dict[str, Any]:
        """Run the particles, and value the served answer beside the best of them."""
        graph = self._without_world if call.world is None else self._with_world
        assert graph is not None
        started = time.perf_counter()
        given = state_before(self.wrapped.agent, call)
        trajectory = self._served_trajectory(call, given, served)
        if call.store is not None:
            graph = graph.copy({"store": ParticleStore(call.store)})  # Writes are discarded with it.
        change_context(world=None if call.world is None else StartedWorld(call.world, call.task))
        async with await graph.arun(given, call.config, **call.options) as run:
            meter = Meter()
            with metering(meter):
                values = await self._values([trajectory, run.best])
        return {
            "value": float(values[0]),
            "best_value": float(values[1]),
            "differs": bool(values[1] > values[0] and _decision(run.best) != _decision(trajectory)),
            "search_seconds": time.perf_counter() - started,
            "n_failed": sum(run.population.failed),
            "at_door": not run.best.done,
            **{f"search_{name}": amount for name, amount in self._spending(run, meter).items()},
        }

    async def _values(self, trajectories: Sequence[Trajectory]) -> Any:
        chosen = self.wrapped.critics.own
        return checked_values(await chosen.critic.values(trajectories), len(trajectories), chosen.name)

    def _served_trajectory(self, call: Call, given: Mapping[str, Any], served: Mapping[str, Any]) -> Trajectory:
        """Return what a particle would have recorded of the served run: up to its first commit call."""
        if self.wrapped.trajectory is not None:
            return self.wrapped.trajectory(dict(served))
        messages, begin = list(served["messages"]), len(given["messages"])
        new = messages[begin:]
        door = next((i for i, message in enumerate(new) if self._commits(message)), None)
        read = new if door is None else new[: door + 1]
        reader = MessageReader.start(messages[:begin], call.task)
        return reader.read(messages[:begin] + read, done=door is None).trajectory

    def _commits(self, message: Any) -> bool:
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        return any(call["name"] in self._commit_tools for call in calls)

    def _spending(self, run: Run, meter: Meter) -> dict[str, float | int | None]:
        usage = {role: dict(models) for role, models in run.usage_by_model.items()}
        for role, models in meter.by_model().items():
            for model, used in models.items():
                known = usage.setdefault(role, {})
                known[model] = known[model] + used if model in known else used
        return spending(usage, self._prices)


def world_of_call(_: Any) -> StartedWorld:
    """Return the world of the current search, for `amc(environment=)`: particles fork it, and do not reset it."""
    world = particle_context().world
    assert isinstance(world, StartedWorld)
    return world


def to_first_door(graph: AmcGraph, gate: Gate) -> AmcGraph:
    """Return an `amc()` graph that ends where all particles wait or have ended, and whose agents give way to calls."""
    agent = graph.wrapped.agent
    polite = {name: node.copy({"bound": GivingWay(node.bound, gate)}) for name, node in agent.nodes.items()}
    agent = agent.copy({"nodes": {**polite, "__start__": agent.nodes["__start__"]}})
    return graph.variant(replace(graph.wrapped, agent=agent), ends_at_door=True)


def state_before(agent: Agent, call: Call) -> Mapping[str, Any]:
    """Return the state with which the agent began: the thread's state and the input, reduced."""
    scratch = agent.copy({"checkpointer": InMemorySaver(), "store": None})
    config: RunnableConfig = {"configurable": {"thread_id": "shadow"}}
    for update in (call.before, call.given):
        if update:
            scratch.update_state(config, update, as_node="__start__")
    return dict(scratch.get_state(config).values)


def _decision(trajectory: Trajectory) -> str:
    """Return what a trajectory ends with, in canonical form: the last action."""
    last: Step | None = trajectory.steps[-1] if trajectory.steps else None
    return "" if last is None else " ".join(last.action.split())
