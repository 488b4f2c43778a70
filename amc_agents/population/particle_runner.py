"""Run particles step by step, fork them and stop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from amc_agents.budget import Purse, Spender
from amc_agents.concurrency.rate_gate import RateGate
from amc_agents.context import change_context
from amc_agents.errors import AgentContractError, BudgetExhausted, UnboundedRequest
from amc_agents.logs import log, room_logger
from amc_agents.messages import turn_of
from amc_agents.population.agent_streams import AgentStreams
from amc_agents.population.features.usage_by_fate import Ledger
from amc_agents.population.particle import Particle, TrajectoryFunction
from amc_agents.population.particle_trace import Outcome
from amc_agents.population.saver import own_containers
from amc_agents.population.time_limits import within
from amc_agents.runtime.budget_keeper import keep_budgets
from amc_agents.runtime.door import PendingCall
from amc_agents.runtime.metering import PolicyMeter, count_requests
from amc_agents.types import Step, Trajectory

T = TypeVar("T")

_log = room_logger(__name__)


@dataclass(frozen=True)
class ParticleRunner:
    """Steps, forks and stops the particles of one run."""

    streams: AgentStreams
    """Reads the agents' streams, a step at a time."""
    meter: PolicyMeter
    """Counts the requests of all particles."""
    ledger: Ledger = field(default_factory=Ledger)
    """The usage of each particle."""
    step_timeout: float | None = None
    """Time limit in seconds for a step; None: no limit."""
    trajectory: TrajectoryFunction | None = None
    """Builds trajectories from states; None: they are read from the messages."""
    purse: Purse | None = None
    """Access to the budget of the run."""
    purses_around: tuple[Spender, ...] = ()
    """Access to the budgets of the surrounding code."""
    gate: RateGate = field(default_factory=RateGate)
    """Holds back all particles after a rate limit."""
    slots: asyncio.Semaphore | None = None
    """Held during a step, so that at most `max_concurrency` particles run at a time; None: no limit."""

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
        return self._in_its_context(particle, self._advance_until(particle, until, stop, config))

    async def resume(
        self,
        particle: Particle,
        config: RunnableConfig,
        *,
        opened: PendingCall | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        """Run a held particle to the end of its superstep, or until it is held again.

        Commit calls that have begun run to their end. A failure is stored in `particle.error`.

        Args:
            particle: held, without a stream.
            config: as for `advance`.
            opened: the commit call that may now run.
            answers: the answers of a human by the ids of the questions.
        """
        if opened is not None:
            particle.door.opened[opened.key] = opened
        running = self._in_its_context(particle, self._resume(particle, config, answers))
        try:
            await running
        finally:
            if running.done() and not running.cancelled():  # Its failure does not end a call in a thread.
                await particle.door.commits_ended()

    async def save(self, particle: Particle, outcome: Outcome = "forked") -> None:
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
        offspring = Particle(
            state=own_containers(dict(particle.state)),
            rng=rng,
            reader=particle.reader,
            world=world,
            store=particle.store.fork() if particle.store else None,
            index=index,
            proposal=particle.proposal,
            ancestor=particle.index,
            steps=particle.steps,
            saved=particle.saved,
            supersteps=particle.supersteps,
            finished=particle.finished,
            at_horizon=particle.at_horizon,
            segment=self.ledger.fork(particle),
            events=[*particle.events],
            return_=particle.return_,
            world_return=particle.world_return,
            error=particle.error,
            hand_off=particle.hand_off,
            door=particle.door.fork(),
            held=particle.held,
            questions=particle.questions,
            span=particle.span,
        )
        if particle.running:
            self.streams.saver.copy_thread(particle.thread_id, offspring.thread_id)
        return offspring

    async def stop(self, particle: Particle, outcome: Outcome = "unfinished") -> None:
        """Stop a paused particle's agent."""
        if particle.stream is None:
            return
        try:
            await self._in_its_context(particle, self.streams.end(particle, outcome))
        except Exception as error:
            log(
                _log,
                logging.WARNING,
                "particle.not_stopped",
                "an agent could not be stopped: %(error)s: %(text)s",
                error=type(error).__name__,
                text=error,
            )

    async def discard(self, particle: Particle) -> None:
        """Stop a particle's agent, close its world and delete its thread."""
        await self.stop(particle, "discarded")
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
                await self._limited_step(particle, config)
        except (AgentContractError, BudgetExhausted, UnboundedRequest):
            raise
        except Exception as error:
            _fail(particle, error)

    async def _resume(self, particle: Particle, config: RunnableConfig, answers: Mapping[str, Any] | None) -> None:
        particle.stream = await self.streams.start(particle, config, answers)
        try:
            await self._limited_step(particle, config)
        except (AgentContractError, BudgetExhausted, UnboundedRequest):
            raise
        except Exception as error:
            _fail(particle, error)

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
        if self.slots is None or (self.purse is not None and self.purse.only is particle):
            yield
            return
        particle.queued = True
        async with self.slots:
            particle.queued = False
            yield

    def _in_its_context(self, particle: Particle, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task isolated from the outer run, with the particle's own world and random stream."""
        context = particle.context
        context.run(var_child_runnable_config.set, None)
        context.run(
            change_context,
            world=None if particle.world is None else particle.world.shown,
            rng=particle.rng,
            door=particle.door,
            gate=self.gate,
            **({} if self.purse is None else {"spenders": (*self.purses_around, Spender(self.purse, particle))}),
        )
        if particle.world is not None:
            particle.world.users = particle.door.running
        context.run(count_requests, self.ledger.meter_of(particle, self.meter))
        if self.purse is not None:
            context.run(keep_budgets)
        return asyncio.create_task(work, context=context)


def _fail(particle: Particle, error: Exception) -> None:
    particle.error = error
    particle.door.shut()
    particle.span.end("failed", error)
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
