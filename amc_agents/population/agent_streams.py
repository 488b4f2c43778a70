"""Read the streams of particles' agents, superstep by superstep, and the reward of each step.

A particle pauses when its agent's stream is not read further: LangGraph computes the next superstep only when the
stream is read. So a pause costs nothing for a particle that continues. Only a particle that is forked is stopped:
LangGraph then saves a checkpoint, from which the particle and its offspring start again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError, ParentCommand
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Interrupt

from amc_agents.concurrency.background import read_sync
from amc_agents.critics.adapting import real_number
from amc_agents.errors import AgentContractError, WorldError
from amc_agents.population.feature import AgentStart, Features
from amc_agents.population.particle import Particle
from amc_agents.population.saver import CarriedValue, ForkSaver, is_plain
from amc_agents.population.settings import RewardFunction
from amc_agents.quoting import quoted
from amc_agents.runtime.calls import PARTICLE_THREAD
from amc_agents.runtime.door import is_of_a_door
from amc_agents.settings import RewardSource


@dataclass(frozen=True)
class Rewards:
    """Computes the rewards of particles."""

    source: RewardSource | None = None
    """Source of the rewards; None: the run has no rewards."""
    function: RewardFunction | None = None
    in_thread: bool = False
    """Whether a sync function is called in a thread, so that a time limit can abandon it."""

    async def since_last_step(self, particle: Particle) -> tuple[float, dict[str, float]]:
        """Compute the reward of a particle's newest step, and the changes of the particle's past by it."""
        reward = 0.0
        if particle.world is not None and self.source in ("world", "both"):
            reward = particle.world.take_reward()
        past = particle.past
        before, world_return = past.return_ - past.world_return, past.world_return + reward
        if self.function is not None and self.source in ("function", "both"):
            reward += await self._function_return(self.function, particle) - before
        return reward, {"return_": past.return_ + reward, "world_return": world_return}

    async def _function_return(self, function: RewardFunction, particle: Particle) -> float:
        in_thread = self.in_thread and not inspect.iscoroutinefunction(function)
        answer = await asyncio.to_thread(function, particle.state) if in_thread else function(particle.state)
        answer = await answer if isinstance(answer, Awaitable) else answer
        try:
            return_ = real_number(answer)
        except ValueError as error:
            raise WorldError(f"reward= must give a number, got {error} after step {particle.steps}") from error
        if not math.isfinite(return_):
            raise WorldError(f"reward= must give a finite return, got {return_} after step {particle.steps}")
        return return_


@dataclass(frozen=True)
class AgentStreams:
    """Starts, reads and ends the streams of the agents of one run."""

    agent: CompiledStateGraph[Any, Any, Any, Any]
    """The wrapped agent, compiled with `saver`."""
    saver: ForkSaver
    step_after: frozenset[str]
    """Nodes after which the agent pauses; a pause ends a step."""
    horizon: int
    rewards: Rewards
    features: Features
    agent_context: Any = None
    """The user's run-time context for the agent."""
    in_threads: bool = False
    """Whether agents are run by their sync methods, each in its own thread, as in a sync call of the plain agent."""
    max_concurrency: int | None = None
    """Limit of the call for concurrent work; None: no limit."""
    nested: bool = False
    """Whether the `amc` graph is a node of another graph, to whose nodes agents may hand off."""

    async def step(self, particle: Particle, config: RunnableConfig) -> None:
        """Read the agent's stream up to the next pause or the end; if the particle was held, to the superstep's end."""
        for before_step in self.features.before_step:
            await before_step(particle)
        if particle.stream is None:
            particle.stream = await self.start(particle, config)
        acted = moved = False
        interrupts: list[Interrupt] = []
        try:
            async for mode, chunk in particle.stream:
                if mode == "updates":
                    moved = True
                    interrupts += chunk.get("__interrupt__", ())
                    acted = acted or not self.step_after.isdisjoint(chunk)
                elif mode != "values":
                    for on_output in self.features.on_output:
                        on_output(particle, mode, chunk)
                if mode != "values" or interrupts:  # After an interrupt, the superstep is not complete.
                    continue
                # `chunk` is the state after a superstep; the next superstep has not begun.
                was_held, changes = particle.held, dict[str, Any](state=chunk)
                if moved:  # The first chunk is the state at the start.
                    if (call := particle.door.passed_over) is not None:
                        raise AgentContractError(_SWALLOWED.format(quoted(call.name)))
                    particle.door.end_superstep()
                    changes |= {"held": False, "questions": ()}
                if acted:
                    at_horizon = particle.steps + 1 >= self.horizon
                    changes |= {"steps": particle.steps + 1, "finished": at_horizon, "at_horizon": at_horizon}
                particle.record(**changes)
                for on_output in self.features.on_output:
                    on_output(particle, mode, chunk)
                if acted or (moved and was_held):
                    break
                moved = False
            else:
                particle.stream = None
                particle.record(finished=not await self._hold(particle, interrupts))
        except asyncio.CancelledError:
            particle.door.shut()
            raise
        except GraphRecursionError as error:
            raise _too_many_supersteps(self._limit(config)) if particle.past.saved else error from None
        except ParentCommand as raised:
            if not self.nested:
                raise AgentContractError(_NO_PARENT.format(quoted(raised.args[0].goto))) from raised
            particle.record(hand_off=replace(raised.args[0], graph=Command.PARENT), finished=True)
            particle.stream = None
        if particle.finished:
            await self.end(particle, "horizon")
        await self._record_step(particle)
        if particle.stream is None:
            for on_agent_end in self.features.on_agent_end:
                await on_agent_end(particle, "held" if particle.held else "finished")

    async def start(
        self,
        particle: Particle,
        config: RunnableConfig,
        answers: Mapping[str, Any] | None = None,
        edit: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Start a particle's agent from its input, or from its checkpoint.

        Args:
            particle: the particle.
            config: as for `ParticleRunner.advance`.
            answers: the answers of a human by the ids of the questions.
            edit: `update` and `goto` of the human's command.
        """
        past, of_call = particle.past, config.get("configurable", {})
        configurable = {"thread_id": particle.thread_id, **of_call, PARTICLE_THREAD: particle.thread_id}
        # A cache of nodes (`cache_policy`) would skip what particles do, and give all of them one answer.
        configurable["__pregel_cache"] = None
        particle.door.begin_attempt()
        if past.saved and not past.held:
            # The particle is between two supersteps. Without this key, LangGraph takes its next tasks for interrupted
            # ones, and a subgraph with its own memory would ignore their input.
            configurable["__pregel_resuming"] = False
        # LangGraph adds the thread's id to the metadata, which every superstep copies. Its own metadata would be a
        # ChainMap, which is slow to copy.
        metadata = {"thread_id": particle.thread_id, **config.get("metadata", {})}
        # Even without listeners, each node would copy the callbacks.
        own: RunnableConfig = {**config, "callbacks": None, "configurable": configurable, "metadata": metadata}
        if self.max_concurrency:
            own["max_concurrency"] = self.max_concurrency
        if past.saved and (limit := self._limit(config)) is not None:
            own["recursion_limit"] = _remaining_limit(limit, past.supersteps)
        start = AgentStart(self.agent, own, config)
        for on_agent_start in self.features.on_agent_start:
            await on_agent_start(particle, start)
        if start.handlers:
            callbacks = start.shared["callbacks"]
            assert isinstance(callbacks, AsyncCallbackManager)
            start.config["callbacks"] = callbacks = callbacks.copy()
            callbacks.set_handlers(start.handlers)
        resumed = Command(resume=dict(answers), **(edit or {})) if answers else None
        input: Any = resumed if past.saved else past.state
        agent, agent_config = start.agent, start.config
        options: dict[str, Any] = {
            "context": self.agent_context,
            "stream_mode": start.stream_mode,
            # Save a checkpoint when the stream ends or is closed, not at each step. ("sync" would be inherited by
            # subgraphs, and those compiled without a checkpointer would fail.)
            "durability": "exit",
        }
        if self.in_threads:
            return read_sync(cast(Generator[Any, None, None], agent.stream(input, agent_config, **options)))
        return cast(AsyncGenerator[Any, None], agent.astream(input, agent_config, **options))

    async def end(self, particle: Particle, outcome: str) -> None:
        """Stop a particle's agent if it is paused."""
        stream, particle.stream = particle.stream, None
        if stream is None:
            return
        try:
            for on_agent_end in self.features.on_agent_end:
                await on_agent_end(particle, outcome, stream)
        finally:
            await stream.aclose()

    def lost_by_fork(self, particle: Particle) -> list[str]:
        """Return the names of a particle's values that its offspring do not have."""
        channels = self.agent.channels
        return [
            name
            for name, value in particle.state.items()
            if isinstance(channels.get(name), CarriedValue) and not is_plain(value)
        ]

    def _limit(self, config: RunnableConfig) -> int | None:
        """Return the recursion limit of the call, or else of the agent; None: LangGraph's own applies."""
        return config.get("recursion_limit", (self.agent.config or {}).get("recursion_limit"))

    def has_checkpoint(self, particle: Particle) -> None:
        """Note that a particle's agent has stopped at a checkpoint from which it can go on."""
        self.saver.prune([particle.thread_id])
        particle.ancestor = particle.index
        particle.record(saved=True, supersteps=self.saver.supersteps(particle.thread_id))

    async def _hold(self, particle: Particle, interrupts: list[Interrupt]) -> bool:
        """Hold a particle whose stream ended by interrupts, and return whether it waits."""
        if not interrupts:
            return False
        await particle.door.end_attempt()
        self.has_checkpoint(particle)
        door = particle.door
        questions = {interrupt.id: interrupt for interrupt in interrupts if not is_of_a_door(interrupt)}
        if not door.waiting and not questions and door.ended_by is not None:
            door.deferred += (door.ended_by,)
            particle.record(held=False)
            return False
        particle.record(held=True, questions=tuple(questions.values()))
        self.features.require("commits")
        return True

    async def _record_step(self, particle: Particle) -> None:
        """Add the step's reward and messages to the particle's record."""
        reward, earned = await self.rewards.since_last_step(particle)
        read = particle.reader
        if read is not None:
            messages, ended = particle.state["messages"], particle.ended
            read = read.read(messages, reward=reward, done=ended, truncated=particle.truncated)
        particle.record(reader=read, **earned)


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


_SWALLOWED = (
    "the agent was stopped before the commit call {}, and went on without it: code around it swallowed LangGraph's "
    "interrupt (a bare `except:`, gather(return_exceptions=True), or a thread that its tool does not wait for). Let "
    "GraphBubbleUp pass (`except GraphBubbleUp: raise`), and wait for threads"
)
_NO_PARENT = (
    "the agent handed off to {} by Command(graph=Command.PARENT), but the amc() graph has no surrounding graph: "
    "make it a node of the swarm, supervisor or graph that has the other agents, or remove the hand-off tool"
)
