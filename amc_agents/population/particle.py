"""One particle: a thread of the wrapped agent, advanced from pause to pause.

A pause is a stream that is not read on: LangGraph computes the next superstep only when it is asked for it. So a
particle that goes on pays nothing for having paused. Only a particle that is forked is stopped: LangGraph then saves a
checkpoint, from which it and its offspring start again.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast
from uuid import uuid4

import numpy as np
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphRecursionError, ParentCommand
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from amc_agents.errors import AgentContractError, WorldError
from amc_agents.messages import MessageReader
from amc_agents.models.seeding import current_rng
from amc_agents.population.containers import own_containers
from amc_agents.population.particle_events import EventListener
from amc_agents.population.particle_trace import Outcome, ParticleTrace
from amc_agents.population.rewards import RewardSource
from amc_agents.population.saver import ForkSaver
from amc_agents.population.store.view import ParticleStore
from amc_agents.population.time_limits import within
from amc_agents.runtime.metering import PolicyMeter, count_requests
from amc_agents.runtime.world import RecordingWorld, set_environment
from amc_agents.types import Trajectory

T = TypeVar("T")

_log = logging.getLogger(__name__)

State = Mapping[str, Any]
"""The values of an agent's channels."""
RewardFunction = Callable[[State], float | Awaitable[float]]
"""The return so far, from the agent's state."""
TrajectoryFunction = Callable[[State], Trajectory]
"""The trajectory so far, from the state of an agent that does not keep messages."""


@dataclass
class Particle:
    """Where one particle stands. Changed only by the `ParticleRunner` that steps it."""

    state: State
    """Its agent's channels at the last pause; at first, the agent's input."""
    rng: np.random.Generator
    """Its own luck: models and worlds that are seeded draw from it."""
    reader: MessageReader | None
    """What has been read of its messages; None where the agent gives its own trajectory."""
    world: RecordingWorld | None = None
    store: ParticleStore | None = None
    """Its view of the agent's store, where the agent has one."""
    index: int = 0
    """Its slot in the population, which it keeps."""
    ancestor: int | None = None
    """The slot of the particle that its agent's present run goes on from: its own where it was forked itself."""
    thread_id: str = field(default_factory=lambda: uuid4().hex)
    steps: int = 0
    """Pauses so far."""
    saved: bool = False
    """Its thread holds a checkpoint to go on from."""
    supersteps: int = 0
    """Supersteps of its agent up to that checkpoint."""
    finished: bool = False
    """Ended by the agent, or cut at the horizon."""
    at_horizon: bool = False
    """The horizon is what finished it."""
    return_: float = 0.0
    """R_t as far as it was observed."""
    world_return: float = 0.0
    """The worlds' share of it."""
    error: Exception | None = None
    """What ended it, where an instrument failed."""
    hand_off: Command[Any] | None = None
    """What ended it, where its agent handed over to another: the command for the graph around this one."""
    stream: AsyncGenerator[Any, None] | None = None
    """Its agent at work, while it is paused between two chunks."""
    trace: ParticleTrace | None = None
    """The run of its agent in traces, once it has started."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The context variables that its agent runs in, always the same."""

    @property
    def running(self) -> bool:
        """It can make another step."""
        return not self.finished and self.error is None

    @property
    def ended(self) -> bool:
        """Nothing more can be earned: the agent or the world has come to an end."""
        return self.finished or (self.world is not None and self.world.ended)

    @property
    def truncated(self) -> bool:
        """A limit of steps ended it, the horizon's or its world's own."""
        if self.world is not None and self.world.ended:
            return self.world.truncated
        return self.at_horizon


@dataclass(frozen=True)
class ParticleRunner:
    """How particles of one run are stepped and forked."""

    agent: CompiledStateGraph[Any, Any, Any, Any]
    """The wrapped agent, on the private saver."""
    saver: ForkSaver
    step_after: frozenset[str]
    """Nodes after which the agent pauses: one pause is one step."""
    horizon: int
    meter: PolicyMeter
    """Counts the requests of all particles."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    """Names the population in the metadata of its particles' runs."""
    agent_context: Any = None
    """The run-time context that the user gave for the agent."""
    rewards: RewardSource | None = None
    """Where they come from; None: there are none."""
    step_timeout: float | None = None
    """Most seconds of one step; None: no limit."""
    reward: RewardFunction | None = None
    trajectory: TrajectoryFunction | None = None
    on_event: EventListener | None = None
    """Hears what agents write to the custom stream; None: nobody listens."""
    nested: bool = False
    """A graph is around this one: agents may hand off to its nodes."""

    def advancing(
        self, particle: Particle, until: int | None, stop: asyncio.Event, config: RunnableConfig
    ) -> asyncio.Task[None]:
        """A task that steps a particle until it has made `until` steps, or ended, or `stop` is set between steps.

        A failure is kept in `particle.error`; only a broken contract is raised.

        Args:
            particle: makes the steps.
            until: None for as many as there are.
            stop: ends the task between two steps.
            config: for every particle alike, with an `AsyncCallbackManager`. A particle that starts keeps it.
        """
        return self._in_its_context(particle, self._advance(particle, until, stop, config))

    async def save(self, particle: Particle) -> None:
        """Stop a paused particle's agent, so that its thread holds a checkpoint from which it can be forked."""
        if particle.stream is None:
            return
        await self._in_its_context(particle, self._end(particle, "forked"))
        self.saver.prune([particle.thread_id])
        particle.saved, particle.ancestor = True, particle.index
        particle.supersteps = self.saver.supersteps(particle.thread_id)

    async def fork(self, particle: Particle, index: int) -> Particle:
        """An offspring for slot `index`: the same past by reference, a random stream of its own.

        A particle that can make another step is saved before.
        """
        assert particle.stream is None or not particle.running, "a fork starts from a checkpoint"
        rng = particle.rng.spawn(1)[0]
        world = await particle.world.fork(int(rng.integers(2**63))) if particle.world else None
        offspring = Particle(
            state=own_containers(dict(particle.state)),
            rng=rng,
            reader=particle.reader,
            world=world,
            store=particle.store.fork() if particle.store else None,
            index=index,
            ancestor=particle.index,
            steps=particle.steps,
            saved=particle.saved,
            supersteps=particle.supersteps,
            finished=particle.finished,
            at_horizon=particle.at_horizon,
            return_=particle.return_,
            world_return=particle.world_return,
            error=particle.error,
            hand_off=particle.hand_off,
        )
        if particle.running:
            self.saver.copy_thread(particle.thread_id, offspring.thread_id)
        return offspring

    async def stop(self, particle: Particle, outcome: Outcome = "unfinished") -> None:
        """Stop a paused particle's agent."""
        if particle.stream is None:
            return
        try:
            await self._in_its_context(particle, self._end(particle, outcome))
        except Exception as error:
            _log.warning("an agent could not be stopped: %s: %s", type(error).__name__, error)

    async def discard(self, particle: Particle) -> None:
        """Stop a particle's agent, close its world and forget its thread."""
        await self.stop(particle, "discarded")
        self.saver.delete_thread(particle.thread_id)
        if particle.world is not None:
            await particle.world.close()

    def trajectory_of(self, particle: Particle) -> Trajectory:
        """What the critic sees of a particle."""
        if self.trajectory is not None:
            return self.trajectory(particle.state)
        assert particle.reader is not None
        return particle.reader.trajectory

    async def _advance(
        self, particle: Particle, until: int | None, stop: asyncio.Event, config: RunnableConfig
    ) -> None:
        try:
            while particle.running and not stop.is_set():
                # Where the world has ended, the agent runs on to its own end: no reward is left to weigh.
                if until is not None and particle.steps >= until and not particle.ended:
                    return
                await within(
                    self.step_timeout,
                    self._step(particle, config),
                    f"step {particle.steps + 1} of a particle took longer than step_timeout",
                    context=particle.context,
                )
        except AgentContractError:
            raise
        except Exception as error:
            particle.error = error

    async def _step(self, particle: Particle, config: RunnableConfig) -> None:
        """Read the agent's stream up to its next pause, or its end."""
        if particle.stream is None:
            particle.stream = self._start(particle, config)
        acted = False
        try:
            async for mode, chunk in particle.stream:
                if mode == "updates":
                    if chunk.get("__interrupt__"):
                        raise AgentContractError(_INTERRUPTED.format(chunk["__interrupt__"][0].value))
                    acted = acted or not self.step_after.isdisjoint(chunk)
                elif mode == "custom" and self.on_event is not None:
                    self.on_event(particle.index, particle.steps, chunk)
                if mode != "values":
                    continue
                # The state after a superstep; the next one has not begun.
                particle.state = chunk
                if acted:
                    particle.steps += 1
                    particle.finished = particle.at_horizon = particle.steps >= self.horizon
                    break
            else:
                particle.finished = True
                particle.stream = None
        except GraphRecursionError as error:
            raise _too_many_supersteps(config.get("recursion_limit")) if particle.saved else error from None
        except ParentCommand as raised:
            if not self.nested:
                raise AgentContractError(_NO_PARENT.format(raised.args[0].goto)) from raised
            particle.hand_off = replace(raised.args[0], graph=Command.PARENT)
            particle.finished = True
            particle.stream = None
        if particle.finished:
            await self._end(particle, "horizon")
        await self._take_stock(particle)

    def _start(self, particle: Particle, config: RunnableConfig) -> AsyncGenerator[Any, None]:
        trace = particle.trace = ParticleTrace(particle, config, self.run_id)
        configurable = {**config.get("configurable", {}), "thread_id": particle.thread_id}
        if particle.saved:
            # It stands between two supersteps. Without this, LangGraph takes its next tasks for interrupted ones, and
            # a subgraph with a memory of its own would ignore what they give it.
            configurable["__pregel_resuming"] = False
        # LangGraph adds the thread's id to the metadata, which every superstep copies. Those that it makes itself are a
        # ChainMap, which is slow to copy.
        metadata = {"thread_id": particle.thread_id, **trace.config.get("metadata", {})}
        own: RunnableConfig = {**trace.config, "configurable": configurable, "metadata": metadata}
        if particle.saved and "recursion_limit" in config:
            own["recursion_limit"] = _left_of(config["recursion_limit"], particle.supersteps)
        agent = self.agent if particle.store is None else self.agent.copy(update={"store": particle.store})
        stream = agent.astream(
            None if particle.saved else particle.state,
            own,
            context=self.agent_context,
            stream_mode=trace.stream_mode if self.on_event is None else [*trace.stream_mode, "custom"],
            # A checkpoint is saved when the stream ends or is closed, not at each step. (With "sync", which subgraphs
            # inherit, those compiled without a checkpointer fail.)
            durability="exit",
        )
        return cast(AsyncGenerator[Any, None], stream)

    async def _end(self, particle: Particle, outcome: Outcome) -> None:
        """Stop a particle's agent, if it is at work."""
        stream, particle.stream = particle.stream, None
        if stream is not None and particle.trace is not None:
            await particle.trace.end(stream, outcome)

    def _in_its_context(self, particle: Particle, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Isolated from the outer run, with the particle's own world and luck."""
        context = particle.context
        context.run(var_child_runnable_config.set, None)
        context.run(current_rng.set, particle.rng)
        context.run(set_environment, particle.world)
        context.run(count_requests, self.meter)
        return asyncio.create_task(work, context=context)

    async def _take_stock(self, particle: Particle) -> None:
        earned = await self._earned(particle)
        particle.return_ += earned
        if particle.reader is not None:
            particle.reader = particle.reader.read(
                particle.state["messages"], reward=earned, done=particle.ended, truncated=particle.truncated
            )

    async def _earned(self, particle: Particle) -> float:
        earned = 0.0
        if particle.world is not None and self.rewards in ("world", "both"):
            earned = particle.world.take_reward()
        if self.reward is not None and self.rewards in ("function", "both"):
            return_ = await self._told_return(self.reward, particle)
            before = particle.return_ - particle.world_return
            particle.world_return += earned
            return earned + (return_ - before)
        particle.world_return += earned
        return earned

    async def _told_return(self, reward: RewardFunction, particle: Particle) -> float:
        # A thread can be left behind where the time of a step is limited; the event loop could not.
        limited = self.step_timeout is not None and not inspect.iscoroutinefunction(reward)
        given = await asyncio.to_thread(reward, particle.state) if limited else reward(particle.state)
        return_ = float(await given if isinstance(given, Awaitable) else given)
        if not math.isfinite(return_):
            raise WorldError(f"reward= must give a finite return, got {return_} after step {particle.steps}")
        return return_


def _left_of(limit: int, supersteps: int) -> int:
    """What is left of a user's recursion limit after a particle's past, as LangGraph counts it for a first start."""
    left = limit - supersteps - 1
    if left < -1:
        raise _too_many_supersteps(limit)
    return max(1, left)  # LangGraph's least; a superstep or two beyond the limit.


def _too_many_supersteps(limit: int | None) -> GraphRecursionError:
    allowed = "LangGraph's own recursion limit" if limit is None else f"Recursion limit of {limit}"
    return GraphRecursionError(
        f"{allowed} reached without hitting a stop condition, the steps before a fork included: raise recursion_limit "
        "in the config of the call"
    )


_INTERRUPTED = (
    "the agent asked for human input ({!r:.100}) while running as particles: one question would be asked by every "
    "particle. Ask before or after amc(), in a node of the graph around it, or leave the interrupting tool out"
)
_NO_PARENT = (
    "the agent handed off to {!r:.100} by Command(graph=Command.PARENT), and no graph is around amc()'s: make it a "
    "node of the swarm, supervisor or graph that has the other agents, or leave the hand-off tool out"
)
