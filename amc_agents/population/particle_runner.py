"""Run particles step by step, fork them and stop them.

A particle pauses when its agent's stream is not read further: LangGraph computes the next superstep only when the
stream is read. So a pause costs nothing for a particle that continues. Only a particle that is forked is stopped:
LangGraph then saves a checkpoint, from which the particle and its offspring start again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphRecursionError, ParentCommand
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Interrupt

from amc_agents.budget import Purse
from amc_agents.concurrency.rate_gate import RateGate, set_gate
from amc_agents.errors import AgentContractError, BudgetExhausted, UnboundedRequest
from amc_agents.messages import turn_of
from amc_agents.models.seeding import current_rng
from amc_agents.population.containers import own_containers
from amc_agents.population.fates import Ledger
from amc_agents.population.particle import Particle, TrajectoryFunction
from amc_agents.population.particle_events import EventListener
from amc_agents.population.particle_trace import Outcome, ParticleTrace
from amc_agents.population.rewards import Rewards
from amc_agents.population.saver import ForkSaver
from amc_agents.population.time_limits import within
from amc_agents.runtime.budget_keeper import keep_budgets
from amc_agents.runtime.door import PendingCall, is_of_a_door, set_door
from amc_agents.runtime.metering import PolicyMeter, count_requests
from amc_agents.runtime.world import set_environment
from amc_agents.spending import Spender, spend_from
from amc_agents.types import Step, Trajectory

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParticleRunner:
    """Steps, forks and stops the particles of one run."""

    agent: CompiledStateGraph[Any, Any, Any, Any]
    """The wrapped agent, compiled with `saver`."""
    saver: ForkSaver
    step_after: frozenset[str]
    """Nodes after which the agent pauses; a pause ends a step."""
    horizon: int
    meter: PolicyMeter
    """Counts the requests of all particles."""
    rewards: Rewards
    ledger: Ledger = field(default_factory=Ledger)
    """The usage of each particle."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    """Identifies the population in the metadata of its particles' runs."""
    agent_context: Any = None
    """The user's run-time context for the agent."""
    step_timeout: float | None = None
    """Time limit in seconds for a step; None: no limit."""
    trajectory: TrajectoryFunction | None = None
    """Builds trajectories from states; None: they are read from the messages."""
    on_event: EventListener | None = None
    """Receives what agents write to the custom stream; None: such events are ignored."""
    purse: Purse | None = None
    """Access to the budget of the run."""
    purses_around: tuple[Spender, ...] = ()
    """Access to the budgets of the surrounding code."""
    gate: RateGate = field(default_factory=RateGate)
    """Holds back all particles after a rate limit."""
    max_concurrency: int | None = None
    """Limit of the call for concurrent work; None: no limit."""
    slots: asyncio.Semaphore | None = None
    """Held during a step, so that at most `max_concurrency` particles run at a time; None: no limit."""
    nested: bool = False
    """Whether the `amc` graph is a node of another graph, to whose nodes agents may hand off."""

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

        A failure is stored in `particle.error`.

        Args:
            particle: held, without a stream.
            config: as for `advance`.
            opened: the commit call that may now run.
            answers: the answers of a human by the ids of the questions.
        """
        if opened is not None:
            particle.door.opened[opened.key] = opened
        await self._in_its_context(particle, self._resume(particle, config, answers))

    async def save(self, particle: Particle, outcome: Outcome = "forked") -> None:
        """Stop a paused particle's agent, so that its thread has a checkpoint from which it can be forked."""
        if particle.stream is None:
            return
        await self._in_its_context(particle, self._end(particle, outcome))
        self._has_checkpoint(particle)

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
            ancestor=particle.index,
            steps=particle.steps,
            saved=particle.saved,
            supersteps=particle.supersteps,
            finished=particle.finished,
            at_horizon=particle.at_horizon,
            segment=self.ledger.fork(particle),
            return_=particle.return_,
            world_return=particle.world_return,
            error=particle.error,
            hand_off=particle.hand_off,
            door=particle.door.fork(),
            held=particle.held,
            questions=particle.questions,
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
        """Stop a particle's agent, close its world and delete its thread."""
        await self.stop(particle, "discarded")
        self.saver.delete_thread(particle.thread_id)
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
            particle.error = error

    async def _resume(self, particle: Particle, config: RunnableConfig, answers: Mapping[str, Any] | None) -> None:
        particle.stream = self._start(particle, config, answers)
        try:
            await self._limited_step(particle, config)
        except (AgentContractError, BudgetExhausted, UnboundedRequest):
            raise
        except Exception as error:
            particle.error = error

    async def _limited_step(self, particle: Particle, config: RunnableConfig) -> None:
        async with self._slot(particle):
            await self.gate.passed()
            await within(
                self.step_timeout,
                self._step(particle, config),
                f"step {particle.steps + 1} of a particle took longer than step_timeout",
                context=particle.context,
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

    async def _step(self, particle: Particle, config: RunnableConfig) -> None:
        """Read the agent's stream up to the next pause or the end; if the particle was held, to the superstep's end."""
        if particle.stream is None:
            particle.stream = self._start(particle, config)
        acted = moved = False
        interrupts: list[Interrupt] = []
        try:
            async for mode, chunk in particle.stream:
                if mode == "updates":
                    moved = True
                    interrupts += chunk.get("__interrupt__", ())
                    acted = acted or not self.step_after.isdisjoint(chunk)
                elif mode == "custom" and self.on_event is not None:
                    self.on_event(particle.index, particle.steps, chunk)
                if mode != "values" or interrupts:  # After an interrupt, the superstep is not complete.
                    continue
                # `chunk` is the state after a superstep; the next superstep has not begun.
                particle.state = chunk
                was_held = particle.held
                if moved:  # The first chunk is the state at the start.
                    particle.door.end_superstep()
                    particle.held, particle.questions = False, ()
                if acted:
                    particle.steps += 1
                    particle.finished = particle.at_horizon = particle.steps >= self.horizon
                if acted or (moved and was_held):
                    break
                moved = False
            else:
                particle.stream = None
                particle.finished = not await self._hold(particle, interrupts)
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
        await self._record_step(particle)

    async def _hold(self, particle: Particle, interrupts: list[Interrupt]) -> bool:
        """Hold a particle whose stream ended by interrupts, and return whether it waits."""
        if not interrupts:
            return False
        await particle.door.end_attempt()
        self._has_checkpoint(particle)
        door = particle.door
        questions = {interrupt.id: interrupt for interrupt in interrupts if not is_of_a_door(interrupt)}
        if not door.waiting and not questions and door.ended_by is not None:
            door.deferred += (door.ended_by,)
            particle.held = False
            return False
        particle.held, particle.questions = True, tuple(questions.values())
        return True

    def _start(
        self, particle: Particle, config: RunnableConfig, answers: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Any, None]:
        trace = particle.trace = ParticleTrace(particle, config, self.run_id)
        configurable = {**config.get("configurable", {}), "thread_id": particle.thread_id}
        particle.door.begin_attempt()
        if particle.saved and not particle.held:
            # The particle is between two supersteps. Without this key, LangGraph takes its next tasks for interrupted
            # ones, and a subgraph with its own memory would ignore their input.
            configurable["__pregel_resuming"] = False
        # LangGraph adds the thread's id to the metadata, which every superstep copies. Its own metadata would be a
        # ChainMap, which is slow to copy.
        metadata = {"thread_id": particle.thread_id, **trace.config.get("metadata", {})}
        agent_config: RunnableConfig = {**trace.config, "configurable": configurable, "metadata": metadata}
        if self.max_concurrency:
            agent_config["max_concurrency"] = self.max_concurrency
        if particle.saved and "recursion_limit" in config:
            agent_config["recursion_limit"] = _remaining_limit(config["recursion_limit"], particle.supersteps)
        agent = self.agent if particle.store is None else self.agent.copy(update={"store": particle.store})
        stream = agent.astream(
            Command(resume=dict(answers)) if answers else None if particle.saved else particle.state,
            agent_config,
            context=self.agent_context,
            stream_mode=trace.stream_mode if self.on_event is None else [*trace.stream_mode, "custom"],
            # Save a checkpoint when the stream ends or is closed, not at each step. ("sync" would be inherited by
            # subgraphs, and those compiled without a checkpointer would fail.)
            durability="exit",
        )
        return cast(AsyncGenerator[Any, None], stream)

    def _has_checkpoint(self, particle: Particle) -> None:
        """Note that a particle's agent has stopped at a checkpoint from which it can go on."""
        self.saver.prune([particle.thread_id])
        particle.saved, particle.ancestor = True, particle.index
        particle.supersteps = self.saver.supersteps(particle.thread_id)

    async def _end(self, particle: Particle, outcome: Outcome) -> None:
        """Stop a particle's agent if it is paused."""
        stream, particle.stream = particle.stream, None
        if stream is not None and particle.trace is not None:
            await particle.trace.end(stream, outcome)

    def _in_its_context(self, particle: Particle, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task isolated from the outer run, with the particle's own world and random stream."""
        context = particle.context
        context.run(var_child_runnable_config.set, None)
        context.run(current_rng.set, particle.rng)
        context.run(set_environment, particle.world)
        context.run(set_door, particle.door)
        context.run(count_requests, self.ledger.meter_of(particle, self.meter))
        context.run(set_gate, self.gate)
        if self.purse is not None:
            context.run(keep_budgets)
            context.run(spend_from, *self.purses_around, Spender(self.purse, particle))
        return asyncio.create_task(work, context=context)

    async def _record_step(self, particle: Particle) -> None:
        """Add the step's reward and messages to the particle's record."""
        reward = await self.rewards.since_last_step(particle)
        if particle.reader is not None:
            particle.reader = particle.reader.read(
                particle.state["messages"], reward=reward, done=particle.ended, truncated=particle.truncated
            )


def _remaining_limit(limit: int, supersteps: int) -> int:
    """Return the user's recursion limit minus the particle's past supersteps, as LangGraph counts a first start."""
    remaining = limit - supersteps - 1
    if remaining < -1:
        raise _too_many_supersteps(limit)
    # LangGraph's minimum is 1, so the particle may exceed the limit by a superstep or two.
    return max(1, remaining)


def _too_many_supersteps(limit: int | None) -> GraphRecursionError:
    allowed = "LangGraph's own recursion limit" if limit is None else f"Recursion limit of {limit}"
    return GraphRecursionError(
        f"{allowed} reached without hitting a stop condition, including the steps before a fork: raise recursion_limit "
        "in the config of the call"
    )


_NO_PARENT = (
    "the agent handed off to {!r:.100} by Command(graph=Command.PARENT), but the amc() graph has no surrounding graph: "
    "make it a node of the swarm, supervisor or graph that has the other agents, or remove the hand-off tool"
)
