"""The background search of a shadow: the other particles of a call that was already answered."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.types import Command

from amc_agents.context import change_context, particle_context
from amc_agents.critics.validation import checked_values
from amc_agents.messages import MessageReader
from amc_agents.operations.rollout.background import Gate, GivingWay
from amc_agents.operations.rollout.measuring import spending
from amc_agents.operations.rollout.wrapping import Agent
from amc_agents.population.features.committing import select_at_door
from amc_agents.population.features.store_views import ParticleStore
from amc_agents.population.graph import AmcGraph
from amc_agents.population.nodes import BothWays, Nodes, RunState
from amc_agents.population.settings import WrappedAgent
from amc_agents.prices import Rates
from amc_agents.run import Run
from amc_agents.runtime.world import StartedWorld
from amc_agents.types import Forkable, Step, Task, Trajectory
from amc_agents.usage import Meter, metering


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
        self.wrapped = wrapped_agent(with_world)
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


def wrapped_agent(graph: AmcGraph) -> WrappedAgent:
    """Return the checked arguments of an `amc()` graph."""
    init: Any = graph.nodes["init"].bound
    wrapped: WrappedAgent = init.work.__self__.wrapped
    return wrapped


def to_first_door(graph: AmcGraph, gate: Gate) -> AmcGraph:
    """Return an `amc()` graph that ends where all particles wait or have ended, and whose agents give way to calls."""
    wrapped = wrapped_agent(graph)
    agent = wrapped.agent
    polite = {name: node.copy({"bound": GivingWay(node.bound, gate)}) for name, node in agent.nodes.items()}
    nodes = Nodes(replace(wrapped, agent=agent.copy({"nodes": {**polite, "__start__": agent.nodes["__start__"]}})))
    n_workers = wrapped.settings.largest_size
    changed = {"init": BothWays(nodes.init, n_workers), "commit": BothWays(_end_at_door, n_workers)}
    bound = {name: graph.nodes[name].copy({"bound": node}) for name, node in changed.items()}
    return graph.copy({"nodes": {**graph.nodes, **bound}, "checkpointer": None})


async def _end_at_door(state: RunState, config: RunnableConfig) -> Command[str]:
    """Select the particle that would act, and end: nothing is committed, and nobody is asked."""
    system = state["amc_system"]
    system.answer = select_at_door(system)
    return Command(goto="finalize")


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
