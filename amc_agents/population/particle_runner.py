"""Run particles step by step, fork them and stop them, within their time limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from amc_agents.concurrency.gather import RateGate
from amc_agents.context import change_context
from amc_agents.errors import AgentContractError, BudgetExhausted, TimeLimitExceeded, UnboundedRequest
from amc_agents.logs import log, room_logger
from amc_agents.messages import turn_of
from amc_agents.population.agent_streams import AgentStreams
from amc_agents.population.feature import Features
from amc_agents.population.particle import Particle, TrajectoryFunction
from amc_agents.population.saver import own_containers
from amc_agents.runtime.door import PendingCall
from amc_agents.types import Step, Trajectory
from amc_agents.usage import Meter

T = TypeVar("T")
Tasks = dict[asyncio.Task[None], Particle]
"""The running tasks of particles."""

CANCELLING_LIMIT_S = 5.0
"""Maximum time in seconds to wait for cancelled work; work that ignores its cancellation is then abandoned."""

_log = room_logger(__name__)


@dataclass
class Outlet:
    """What identifies a run, and where it writes what it has to tell."""

    seed: int
    meter: Meter
    """Usage by role."""
    emit: Callable[[dict[str, Any]], None]
    """Receives the events of the run as they happen."""
    notes: list[str] = field(default_factory=list)
    channels: dict[str, Any] = field(default_factory=dict)
    """Private channels of the outer graph that the next node writes."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    """Identifies the population in the metadata of its particles' runs."""


@dataclass
class ParticleRunner:
    """Steps, forks and stops the particles of one run."""

    streams: AgentStreams
    """Reads the agents' streams, a step at a time."""
    features: Features
    outlet: Outlet
    step_timeout: float | None = None
    """Time limit in seconds for a step; None: no limit."""
    trajectory: TrajectoryFunction | None = None
    """Builds trajectories from states; None: they are read from the messages."""
    slots: asyncio.Semaphore | None = None
    """Held during a step, so that at most `max_concurrency` particles run at a time; None: no limit."""
    urgent: Particle | None = None
    """A particle that does not wait for a slot, because all others wait for it."""
    gate: RateGate = field(default_factory=RateGate)
    """Holds back all particles after a rate limit."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no particle may make another step."""
    cut: bool = False
    """Whether agents were cancelled within a step."""

    def start_all(self, particles: Iterable[Particle], until: int | None, config: RunnableConfig) -> Tasks:
        """Start the particles that can make a step, as `advance` does."""
        return {
            self.advance(particle, until, self.stopping, config): particle
            for particle in particles
            if particle.can_step
        }

    def advance(
        self, particle: Particle, until: int | None, stop: asyncio.Event, config: RunnableConfig
    ) -> asyncio.Task[None]:
        """Start a task that runs a particle until it has made `until` steps, has ended, or `stop` is set.

        A failure is stored in `particle.error`; the task raises only `AgentContractError`, and the errors of a budget.

        Args:
            particle: the particle to run.
            until: number of steps since the particle's start; None: until it ends.
            stop: when set, the task ends before the next step.
            config: shared by all particles, with an `AsyncCallbackManager`; used by a particle that starts here.
        """
        particle.task = self._in_its_context(particle, self._advance_until(particle, until, stop, config))
        return particle.task

    def drop(self, particle: Particle) -> None:
        """Let the run go on without a particle; a step in progress is cancelled, with its requests."""
        particle.record(dropped=True)
        if particle.task is not None and particle.task is not asyncio.current_task():
            particle.task.cancel()

    async def begin_anew(self, particle: Particle, fresh: Particle) -> None:
        """Make a running particle a new one, which starts from the agent's input in the same slot and task.

        Called in the particle's own task, between two steps.

        Args:
            particle: its agent is stopped, its world closed and its thread deleted.
            fresh: has a past, a world, a thread and a random stream, which the particle takes over.
        """
        await self._discard_here(particle, "restarted")
        particle.past, particle.rng, particle.world = fresh.past, fresh.rng, fresh.world
        particle.door, particle.thread_id = fresh.door, fresh.thread_id
        particle.ancestor, particle.states = None, {}
        self._enter(particle)

    async def resume(
        self,
        particle: Particle,
        config: RunnableConfig,
        *,
        opened: PendingCall | None = None,
        answers: Mapping[str, Any] | None = None,
        edit: Mapping[str, Any] | None = None,
    ) -> None:
        """Run a held particle to the end of its superstep, or until it is held again.

        Commit calls that have begun run to their end. A failure is stored in `particle.error`.

        Args:
            particle: held, without a stream.
            config: as for `advance`.
            opened: the commit call that may now run.
            answers: the answers of a human by the ids of the questions.
            edit: what else the human's command says, for the agent: `update` and `goto`.
        """
        if opened is not None:
            particle.door.opened[opened.key] = opened
        running = self._in_its_context(particle, self._resume(particle, config, answers, edit))
        try:
            await running
        finally:
            if running.done() and not running.cancelled():  # Its failure does not end a call in a thread.
                await particle.door.commits_ended()

    async def save(self, particle: Particle, outcome: str = "forked") -> None:
        """Stop a paused particle's agent, so that its thread has a checkpoint from which it can be forked."""
        if particle.stream is None:
            return
        await self._in_its_context(particle, self.streams.end(particle, outcome))
        self.streams.has_checkpoint(particle)

    async def fork(self, particle: Particle, index: int) -> Particle:
        """Create an offspring in slot `index` that shares the particle's past and has a new random stream.

        A particle that is still running must be saved first.
        """
        assert particle.stream is None or not particle.running, "a fork starts from a checkpoint"
        rng = particle.rng.spawn(1)[0]
        world = await particle.world.fork(int(rng.integers(2**63))) if particle.world else None
        past = replace(particle.past, state=own_containers(dict(particle.state)))
        offspring = Particle(past, rng, index, world, particle.door.fork(), ancestor=particle.index)
        for on_fork in self.features.on_fork:
            on_fork(particle, offspring)
        if particle.running:
            self.streams.saver.copy_thread(particle.thread_id, offspring.thread_id)
        return offspring

    async def stop(self, particle: Particle, outcome: str = "unfinished") -> None:
        """Stop a paused particle's agent."""
        if particle.stream is not None:
            await self._in_its_context(particle, self._stop_here(particle, outcome))

    async def _stop_here(self, particle: Particle, outcome: str) -> None:
        try:
            await self.streams.end(particle, outcome)
        except Exception as error:
            log(
                _log,
                logging.WARNING,
                "particle.not_stopped",
                "an agent could not be stopped: %(error)s: %(text)s",
                error=type(error).__name__,
                text=error,
            )

    async def stop_all(self, particles: Iterable[Particle]) -> None:
        """Stop all agents, at the end of the run."""
        await asyncio.gather(*(self.stop(particle) for particle in particles if particle.stream is not None))
        for on_stopped in self.features.on_stopped:
            on_stopped()

    async def save_all(self, particles: Iterable[Particle]) -> None:
        """Stop the agents of all running particles at checkpoints from which they go on."""
        await asyncio.gather(*(self.save(particle, "saved") for particle in particles if particle.running))

    async def discard(self, particle: Particle) -> None:
        """Stop a particle's agent, close its world and delete its thread."""
        await self.stop(particle, "discarded")
        await self._discard_here(particle, "discarded")

    async def _discard_here(self, particle: Particle, outcome: str) -> None:
        await self._stop_here(particle, outcome)
        self.streams.saver.delete_thread(particle.thread_id)
        if particle.world is not None:
            await particle.world.close()

    def trajectory_of(self, particle: Particle) -> Trajectory:
        """Return the trajectory that the critic sees; it ends with the calls for which the particle waits."""
        if self.trajectory is not None:
            return self.trajectory(particle.state)
        assert particle.reader is not None
        trajectory = particle.reader.trajectory
        if not particle.held or not (unlisted := particle.unlisted_calls):
            return trajectory
        calls = [ToolCall(name=call.name, args=dict(call.args), id=call.call_id) for call in unlisted]
        _, action = turn_of(AIMessage("", tool_calls=calls))
        return replace(trajectory, steps=(*trajectory.steps, Step(action)))

    async def _advance_until(
        self, particle: Particle, until: int | None, stop: asyncio.Event, config: RunnableConfig
    ) -> None:
        try:
            while particle.can_step and not stop.is_set():
                # After the end of its world, no reward is left to weigh, so the agent runs to its own end.
                if until is not None and particle.steps >= until and not particle.ended:
                    return
                for goes_on in self.features.goes_on:
                    if not await goes_on(particle):
                        return self.drop(particle)
                await self._tried_step(particle, config)
            if self.features.on_arrival and (particle.succeeded or particle.pending):
                for on_arrival in self.features.on_arrival:
                    await on_arrival(particle)
        except asyncio.CancelledError:
            if not particle.past.dropped:
                raise

    async def _resume(
        self,
        particle: Particle,
        config: RunnableConfig,
        answers: Mapping[str, Any] | None,
        edit: Mapping[str, Any] | None,
    ) -> None:
        particle.stream = await self.streams.start(particle, config, answers, edit)
        await self._tried_step(particle, config)

    async def _tried_step(self, particle: Particle, config: RunnableConfig) -> None:
        try:
            await self._limited_step(particle, config)
        except (AgentContractError, BudgetExhausted, UnboundedRequest):
            raise
        except Exception as error:
            await self._fail(particle, error)

    async def _limited_step(self, particle: Particle, config: RunnableConfig) -> None:
        async with self._slot(particle):
            await self.gate.passed()
            await within(
                self.step_timeout,
                self.streams.step(particle, config),
                f"step {particle.steps + 1} of a particle took longer than step_timeout",
                context=particle.context,
                spare=particle.door.commits_ended,
            )
            self.gate.succeeded()

    @asynccontextmanager
    async def _slot(self, particle: Particle) -> AsyncIterator[None]:
        """Wait until the particle may make a step; the only particle that may spend does not wait for the others."""
        if self.slots is None or self.urgent is particle:
            yield
            return
        particle.queued = True
        async with self.slots:
            particle.queued = False
            yield

    def _in_its_context(self, particle: Particle, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task isolated from the outer run, with the particle's own world and random stream."""
        particle.context.run(self._enter, particle)
        return asyncio.create_task(work, context=particle.context)

    def _enter(self, particle: Particle) -> None:
        """Set the context of a particle, in which this is called."""
        var_child_runnable_config.set(None)
        change_context(
            world=None if particle.world is None else particle.world.shown,
            rng=particle.rng,
            door=particle.door,
            gate=self.gate,
        )
        if particle.world is not None:
            particle.world.users = particle.door.running
        if self.features.before_call:
            particle.door.judge = partial(self._judged, particle)
        for on_enter in self.features.on_enter:
            on_enter(particle)

    def _judged(self, particle: Particle, name: str, args: Mapping[str, Any]) -> str | None:
        verdicts = (before_call(particle, name, args) for before_call in self.features.before_call)
        return next((str(verdict) for verdict in verdicts if verdict is not None), None)

    async def _fail(self, particle: Particle, error: Exception) -> None:
        particle.record(error=error)
        particle.door.shut()
        for on_agent_end in self.features.on_agent_end:
            await on_agent_end(particle, "failed", error=error)
        log(
            _log,
            logging.INFO,
            "particle.failed",
            "particle %(particle)d failed in step %(step)d: %(error)s: %(text)s",
            particle=particle.index,
            step=particle.steps + 1,
            error=type(error).__name__,
            text=error,
        )


async def within(
    limit_s: float | None,
    work: Awaitable[T],
    message: str,
    *,
    context: Context | None = None,
    spare: Callable[[], Awaitable[bool]] | None = None,
) -> T:
    """Wait for `work`, and cancel it after `limit_s` seconds.

    Args:
        limit_s: None for no limit.
        work: runs in its own task if it has a limit.
        message: of the error; names the work and the setting.
        context: context variables of the task; default: a copy of the caller's.
        spare: waits for a part of the work that must not be cancelled, and returns whether there was one; the limit
            then starts again.

    Raises:
        TimeLimitExceeded: `work` did not end in time.
    """
    if limit_s is None:
        return await work
    task = asyncio.create_task(_as_coroutine(work), context=context or copy_context())
    try:
        while True:
            await asyncio.wait([task], timeout=limit_s)
            if task.done():
                return task.result()
            if spare is None or not await spare():
                raise TimeLimitExceeded(message, limit_s)
    finally:
        await stop([task])


async def stop(tasks: list[asyncio.Task[T]]) -> None:
    """Cancel the running tasks and wait for their end; asyncio then reports no failure as unretrieved."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=CANCELLING_LIMIT_S)
    for task in tasks:
        task.add_done_callback(_retrieve)


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work


def _retrieve(task: asyncio.Task[T]) -> None:
    # Only the first failure is raised; this marks the others as retrieved.
    if not task.cancelled():
        task.exception()
