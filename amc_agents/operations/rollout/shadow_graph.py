"""Answer by the plain agent, and search in the background with the other particles of a sampled share of calls."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command, StateSnapshot
from typing_extensions import override

from amc_agents.budget import Budget
from amc_agents.concurrency.background import run_in_background
from amc_agents.context import change_context
from amc_agents.critics.adapting import CriticLike
from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.operations.rollout.call_records import (
    Agent,
    Measured,
    Records,
    Writer,
    fields_of,
    forget_measuring,
    updated,
    with_run_id,
)
from amc_agents.operations.rollout.shadow_report import KIND, ShadowReport, read_report
from amc_agents.operations.rollout.shadow_search import (
    Background,
    Call,
    Gate,
    Search,
    Searcher,
    world_of_call,
)
from amc_agents.population.saver import own_containers
from amc_agents.population.settings import EnvironmentFunction
from amc_agents.population.wrap import amc
from amc_agents.prices import Rates
from amc_agents.quoting import quoted
from amc_agents.runtime.world import current_world
from amc_agents.settings import AmcSettings
from amc_agents.types import Forkable, Task


class Tap:
    """Adds `stream_mode="values"` to a call, keeps the last state, and shows the caller only what was asked for.

    Args:
        default: the graph's stream mode.
        options: of the call.
    """

    def __init__(self, default: str | Sequence[str], options: Mapping[str, Any]) -> None:
        given = options.get("stream_mode") or default
        modes = [given] if isinstance(given, str) else list(given)
        self._single = isinstance(given, str)
        self._subgraphs = bool(options.get("subgraphs"))
        self._typed = options.get("version") == "v2"
        self._adds = "values" not in modes
        self.options: dict[str, Any] = {**options, "stream_mode": [*modes, "values"] if self._adds else given}
        """Options of the call that is made."""
        self.state: dict[str, Any] | None = None
        """The last state; None: none was read, or the agent was interrupted after it."""

    def shown(self, event: Any) -> Iterator[Any]:
        """Keep a state, and yield the event as the caller asked for it, if at all."""
        namespace, mode, data = self._parts(event)
        if mode == "values" and not namespace:
            interrupted = "__interrupt__" in data or (self._typed and event.get("interrupts"))
            self.state = None if interrupted else dict(data)
        if not self._adds or self._typed:
            if mode != "values" or not self._adds:
                yield event
        elif mode != "values":
            yield self._as_asked(event, namespace, data)

    def _parts(self, event: Any) -> tuple[Any, str, Any]:
        if self._typed:
            return event["ns"], event["type"], event["data"]
        if self._single and not self._adds:
            namespace, data = event if self._subgraphs else ((), event)
            return namespace, "values", data
        return event if self._subgraphs else ((), *event)

    def _as_asked(self, event: Any, namespace: Any, data: Any) -> Any:
        if not self._single:
            return event
        return (namespace, data) if self._subgraphs else data


MOST_WAITING = 8


def shadow(
    agent: Agent,
    critic: str | CriticLike,
    rate: float = 0.05,
    *,
    folder: str | Path,
    budget: Budget | None = None,
    n_particles: int = 15,
    environment: EnvironmentFunction | None = None,
    prices: Mapping[str, Rates] | None = None,
    most_waiting: int = MOST_WAITING,
    seed: int | None = None,
    settings: AmcSettings | None = None,
    **options: Any,
) -> ShadowGraph:
    """Answer every call by the plain agent, and search for better answers in the background of a sampled share.

    The returned graph is called like `agent`, and answers like it. After a sampled answer is out, the other N - 1
    particles of `amc()` run on forks of a snapshot of the world that was taken before the agent acted. They stop at
    their first commit call or question, so nothing happens in reality. A failure of the search is counted and never
    reaches the caller. `graph.report()` shows what can be known without serving. See docs/rollout.md.

    Args:
        agent: the agent in production.
        critic: as for `amc()`; it predicts the whole return, because production has no rewards.
        rate: share of the calls to search for.
        folder: of the records, on a local disk; processes of one machine share it.
        budget: limits of all searches together; when it is spent, calls are no longer sampled.
        n_particles: N, the served answer included.
        environment: returns the live world in which the agent is about to act, from the input: an object with `fork`,
            alone or with a Task. It is only forked, never reset or closed. None: the world of `use_environment`, if
            any.
        prices: dollars by model, as for `amc_agents.prices.cost`.
        most_waiting: maximum number of searches that wait; further ones are dropped and counted.
        seed: of the sampling of calls and of the forks; None: drawn at random.
        settings: as for `amc()`, but without rewards.
        **options: further arguments of `amc()`, such as `resample`, `tools` or `step_after`.

    Raises:
        AgentContractError: the agent cannot be run as particles.
        ConfigurationError: a setting is invalid.
        CheckpointError: the folder cannot be used.
    """
    if not 0.0 <= rate <= 1.0:
        raise ConfigurationError(f"rate must lie in [0, 1], got {quoted(rate)}")
    if isinstance(n_particles, bool) or not isinstance(n_particles, int) or n_particles < 2:
        raise ConfigurationError(
            "n_particles must be a whole number of at least 2 (the served answer and others), got "
            f"{quoted(n_particles)}"
        )
    settings = settings or AmcSettings()
    given = options.keys() | settings.given().keys()
    refused = sorted(given & {"reward", "rewards", "hide_rewards", "checkpointer", "critics"})
    if refused:
        raise ConfigurationError(f"shadow() takes no {', '.join(refused)}: production has no rewards, and searches end")
    options = {"budget": budget, "n_particles": n_particles - 1, "seed": seed, **options}
    agent_alone = agent.copy({"checkpointer": None}) if isinstance(agent, CompiledStateGraph) else agent
    unrewarded = replace(settings, rewards=False)
    in_world = amc(agent_alone, critic, environment=world_of_call, settings=unrewarded, **options)
    try:
        without_world = amc(agent_alone, critic, settings=settings, **options)
    except AgentContractError:  # Tools act on a world; everything else was checked before.
        without_world = None
    records, gate = Records(folder, KIND), Gate()
    wrapped = in_world.wrapped
    settings_kept = {"rate": rate, "n_particles": n_particles, "critic": wrapped.critics.own.name}
    records.set_fact("settings", settings_kept)
    searcher = Searcher(in_world, without_world, gate, prices)
    state = Shadow(records, gate, searcher, Background(most_waiting, n_particles), rate, environment, budget, prices,
                   random.Random(seed))  # fmt: skip
    return ShadowGraph(shadow=state, plain=agent, **fields_of(agent))


class Skipped(Exception):
    """A call that cannot be searched for; the reason is counted."""


@dataclass
class Shadow:
    """The state of a shadow in this process."""

    records: Records
    gate: Gate
    searcher: Searcher
    background: Background
    rate: float
    environment: EnvironmentFunction | None
    budget: Budget | None
    prices: Mapping[str, Rates] | None
    rng: random.Random
    writer: Writer = field(default_factory=Writer)
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def samples(self) -> bool:
        """Count a call, and draw whether to search for it."""
        with self._lock:
            self._counts["calls"] += 1
            return self.rng.random() < self.rate and not self.background.closed

    def count(self, what: str) -> None:
        """Count something, and write all counts soon."""
        with self._lock:
            self._counts[what] += 1
        self.write_counts()

    def write_counts(self) -> None:
        """Write the counts so far."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if counts:
            self.writer.submit(lambda: self.records.add_to("counts", counts))

    async def prepare(
        self, given: Any, config: RunnableConfig, before: StateSnapshot | None, context: Any, store: BaseStore | None
    ) -> Call:
        """Take what the search needs before the agent acts.

        Raises:
            Skipped: the call cannot be searched for.
        """
        if self.budget is not None and not all(self.budget.left.values()):
            raise Skipped("over_budget")
        if given is None or isinstance(given, Command) or (before is not None and before.next):
            raise Skipped("resumed")
        thread = config.get("configurable", {}).get("thread_id")
        world, task = await self._world(given)
        return Call(
            run_id=str(config["run_id"]),
            thread="" if thread is None else str(thread),
            given=own_containers(given),
            before={} if before is None else own_containers(before.values),
            world=world,
            task=task,
            config=_search_config(config),
            options={} if context is None else {"context": context},
            store=store,
        )

    async def _world(self, given: Any) -> tuple[Forkable | None, Task | None]:
        """Fork the world in which the agent is about to act."""
        made = current_world() if self.environment is None else self.environment(given)
        if inspect.isawaitable(made):
            made = await made
        world, task = made if isinstance(made, tuple) else (made, None)
        if world is None and self.searcher.needs_world:
            raise Skipped("no_world")
        return (None if world is None else await world.fork(self.rng.getrandbits(63))), task

    def finish(self, sampled: Sampled) -> None:
        """Record a sampled call that has ended, and queue its search if the agent has answered."""
        call, measured = sampled.call, sampled.measured
        job = Search(self.searcher, self, call, sampled.tap.state or {}, _detached())
        reason = sampled.reason
        if reason is None:
            body = {"key": call.thread or call.run_id, "thread": call.thread, **measured.as_record()}
            self.writer.submit(lambda: self.records.add_call(call.run_id, measured.started, {**body, "value": None}))
            self.count("sampled")
            reason = None if self.background.add(job) else "dropped"
        if reason is not None:
            self.count(reason)
            self.background.discard(job)

    def keep(self, run_id: str, found: Mapping[str, Any]) -> None:
        """Record what a search found."""
        self.writer.submit(lambda: self.records.add_call(run_id, 0.0, found))


@dataclass
class Sampled:
    """A sampled call while it is served."""

    call: Call
    tap: Tap
    measured: Measured
    ended: bool = False
    """Whether its stream was read to the end."""

    @property
    def reason(self) -> str | None:
        """Why there is nothing to search for; None: the agent has answered."""
        if self.measured.failed is not None:
            return "served_failed"
        if not self.ended:
            return "abandoned"
        return None if self.tap.state is not None else "interrupted"


class ShadowGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """The graph that `shadow` returns: the agent's graph, with `outcome`, `report`, `close` and `aclose`."""

    def __init__(self, *, shadow: Shadow, plain: Agent, **options: Any) -> None:
        super().__init__(**options)
        self.shadow, self.plain = shadow, plain

    @override
    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Copy the graph; a checkpointer, store, cache or config applies to the agent."""
        return super().copy({**(update or {}), "plain": updated(self.plain, update)})

    @override
    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        with self.shadow.gate.call():
            sampled = self._sampled(input, config, kwargs) if self.shadow.samples() else None
            if sampled is None:
                yield from self.plain.stream(input, config, **kwargs)
                return
            try:
                events = self.plain.stream(input, with_run_id(config, sampled.call.run_id), **sampled.tap.options)
                for event in sampled.measured.stream(events):
                    yield from sampled.tap.shown(event)
                sampled.ended = True
            finally:
                self.shadow.finish(sampled)

    @override
    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        with self.shadow.gate.call():
            sampled = await self._asampled(input, config, kwargs) if self.shadow.samples() else None
            if sampled is None:
                plain = cast(AsyncGenerator[Any, None], self.plain.astream(input, config, **kwargs))
                async with aclosing(plain):
                    async for event in plain:
                        yield event
                return
            try:
                events = self.plain.astream(input, with_run_id(config, sampled.call.run_id), **sampled.tap.options)
                async with aclosing(sampled.measured.astream(events)) as measured:
                    async for event in measured:
                        for shown in sampled.tap.shown(event):
                            yield shown
                sampled.ended = True
            finally:
                self.shadow.finish(sampled)

    def outcome(self, id: str, value: float) -> None:
        """Join the outcome of a served answer; a later outcome replaces it.

        Args:
            id: the `run_id` of the call's config, or the thread's id.
            value: the outcome, in the units of the critic's values.

        Raises:
            ConfigurationError: the outcome is not a finite number.
        """
        self.shadow.records.check_outcomes({id: value})
        self.shadow.writer.submit(lambda: self.shadow.records.add_outcomes({id: value}))

    def report(self) -> ShadowReport:
        """Return what is known now. Searches that still run are not in it."""
        self.shadow.write_counts()
        self.shadow.writer.flush()
        return replace(read_report(self.shadow.records), lost=self.shadow.writer.dropped)

    def close(self, timeout: float | None = 30.0) -> None:
        """Search no more, wait for the searches, and write all records. Calls are still answered.

        Args:
            timeout: seconds until running searches are cancelled; None: no limit.
        """
        self.shadow.background.close(timeout)
        self.shadow.write_counts()
        self.shadow.writer.flush()

    async def aclose(self, timeout: float | None = 30.0) -> None:
        """Like `close`, for searches of this event loop."""
        await self.shadow.background.aclose(timeout)
        self.shadow.write_counts()
        await asyncio.to_thread(self.shadow.writer.flush)

    def _sampled(self, input: Any, config: RunnableConfig | None, options: Mapping[str, Any]) -> Sampled | None:
        """Prepare a sampled call; None, and the reason counted, if it cannot be searched for."""
        try:
            own = _own_config(config)
            before = self.plain.get_state(own) if self._remembers(own) else None
            preparing = self.shadow.prepare(input, own, before, options.get("context"), self.plain.store)
            call = run_in_background(preparing, n_workers=1)
        except Exception as error:
            self.shadow.count(_reason(error))
            return None
        return Sampled(call, Tap(self.plain.stream_mode, options), Measured(self.shadow.prices))

    async def _asampled(self, input: Any, config: RunnableConfig | None, options: Mapping[str, Any]) -> Sampled | None:
        try:
            own = _own_config(config)
            before = await self.plain.aget_state(own) if self._remembers(own) else None
            call = await self.shadow.prepare(input, own, before, options.get("context"), self.plain.store)
        except Exception as error:
            self.shadow.count(_reason(error))
            return None
        return Sampled(call, Tap(self.plain.stream_mode, options), Measured(self.shadow.prices))

    def _remembers(self, config: RunnableConfig) -> bool:
        return isinstance(self.plain.checkpointer, BaseCheckpointSaver) and "thread_id" in config["configurable"]


def _own_config(config: RunnableConfig | None) -> RunnableConfig:
    """Return the config of a call with a run's id."""
    given = ensure_config(config)
    return {**given, "run_id": given.get("run_id") or uuid.uuid4()}


def _search_config(config: RunnableConfig) -> RunnableConfig:
    """Return the config of a search: the user's keys and tags, and no thread, checkpoint or callback."""
    configurable = {
        key: value
        for key, value in config.get("configurable", {}).items()
        if key != "thread_id" and not key.startswith(("__", "checkpoint"))
    }
    metadata = {key: value for key, value in config.get("metadata", {}).items() if key in configurable}
    kept: RunnableConfig = {"configurable": configurable, "metadata": metadata,
                            "tags": [*(config.get("tags") or ()), "amc:shadow"]}  # fmt: skip
    return kept


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Skipped) else f"not_prepared: {type(error).__name__}: {error}"[:200]


def _detached() -> Context:
    """Return this context without the surrounding run: no callbacks, meters, budgets, world or door."""
    context = copy_context()
    context.run(var_child_runnable_config.set, None)
    context.run(forget_measuring)
    context.run(change_context, spenders=(), world=None, door=None)
    return context
