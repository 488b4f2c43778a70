"""Start a run: connect the critic, create the worlds and the particles (AMC, Algorithm 1, line 1)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import numpy as np
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.config import get_stream_writer
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Overwrite
from typing_extensions import is_typeddict

from amc_agents.concurrency.background import on_background_loop
from amc_agents.critics.adapting import connect
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.messages import MessageReader
from amc_agents.population.agent_streams import AgentStreams, Rewards
from amc_agents.population.feature import Features
from amc_agents.population.features import RunStart, features_of
from amc_agents.population.open_run import OpenRun
from amc_agents.population.particle import Particle, Past, State
from amc_agents.population.particle_runner import Outlet, ParticleRunner
from amc_agents.population.saver import ForkSaver, carrying, own_containers
from amc_agents.population.settings import Settings, WrappedAgent
from amc_agents.population.system import ParticleSystem
from amc_agents.runtime import calls, contract
from amc_agents.runtime.door import Door, NodeAtDoor
from amc_agents.runtime.effects import Effect, has_sync_form
from amc_agents.runtime.metering import PolicyMeter, pass_caches_by, policy_meter
from amc_agents.runtime.world import RecordingWorld, Worlds, make_worlds
from amc_agents.types import Forkable, Task
from amc_agents.usage import Meter, metering


class _OpaqueSystem(ParticleSystem):
    """A `ParticleSystem` that a server encodes as null when it streams the inputs of a graph's tasks.

    The server's encoder walks through the fields of dataclasses (here agents, worlds and clients), but not through
    those of their subclasses. It is never copied either: `astream_events(version="v1")` copies the inputs of nodes.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> _OpaqueSystem:
        return self


async def start(
    wrapped: WrappedAgent, given: State, config: RunnableConfig, runtime: Runtime[Any], point: Origin | None = None
) -> ParticleSystem:
    """Create the particles of a run, each with its own thread, world and random stream.

    Args:
        wrapped: the agent and its settings.
        given: the values of the agent's channels: those of its input, and those of a conversation's earlier turns.
        config: of the `init` node; leads to the `OpenRun` that closes the system.
        runtime: of the `init` node.
        point: a durable point from which the particles go on; None: they start from the input.

    Raises:
        ConfigurationError: neither a critic nor rewards can tell particles apart.
        RunTimedOut: `run_timeout` passed before the critic was connected and the worlds were created.
    """
    owner, shown = OpenRun.of(config), contract.as_state(wrapped.agent, given)
    pass_caches_by()
    call = calls.read_call(wrapped.agent, runtime.context, config)
    origin = point or FromInput(_seed(wrapped.settings, call.seed), wrapped.settings.start_size)
    chosen = await wrapped.critics.for_call(call.critic, call.critic_from)
    settings = replace(wrapped.settings, critic=chosen.name, critic_from=chosen.source)
    settings.require_source_of_weights()
    outlet = Outlet(origin.seed, origin.meter, get_stream_writer(), [*call.notes], run_id=origin.run_id or uuid4().hex)
    meter, beginning = PolicyMeter(outlet.meter, around=policy_meter()), Beginning(wrapped, ForkSaver())

    async def recruit(n_particles: int, earlier: int) -> list[Particle]:
        """Create the particles of a later round, with random streams of their own."""
        recruits = FromInput(origin.seed, n_particles, earlier)
        made, task = await recruits.create_worlds(wrapped, shown, owner.worlds, features)
        return recruits.create_particles(given, task, made, beginning)

    features = owner.features = features_of(
        RunStart(
            wrapped,
            settings,
            config,
            given,
            meter,
            outlet.emit if owner.wants_events and _has_reader(outlet.emit) else None,
            runtime.store or wrapped.agent.store,
            owner.span,
            outlet.run_id,
            recruit,
            origin.spent_s,
            None if origin.run_id is None else (origin.run_id, origin.meter.by_model()),
        )
    )
    async with features.within("start", None):
        await _connect(chosen.critic, settings, outlet, features)
        worlds, task = await origin.create_worlds(wrapped, shown, owner.worlds, features)
        connected = settings.may_call_critic
        settings = _for_worlds(settings, worlds, wrapped)
        if not connected:
            await _connect(chosen.critic, settings, outlet, features)
    outlet.notes += _world_notes(worlds)
    limit = owner.max_concurrency or config.get("max_concurrency")
    streams = AgentStreams(
        agent=wrapped.agent.copy(
            update={
                "checkpointer": beginning.saver,
                "nodes": _nodes_at_doors(wrapped, judged=bool(features.before_call)),
                "channels": carrying(wrapped.agent.channels),
            }
        ),
        saver=beginning.saver,
        step_after=frozenset(wrapped.step_after),
        horizon=settings.horizon,
        rewards=Rewards(settings.rewards, wrapped.reward, in_thread=settings.step_timeout is not None),
        features=features,
        agent_context=call.context,
        in_threads=on_background_loop() and has_sync_form(wrapped.agent),
        max_concurrency=limit,
        nested="|" in config["configurable"].get("checkpoint_ns", ""),
    )
    slots = asyncio.Semaphore(limit) if limit else None
    runner = ParticleRunner(streams, features, outlet, settings.step_timeout, wrapped.trajectory, slots)
    particles = origin.create_particles(given, task, worlds, beginning)
    system = owner.system = _OpaqueSystem.of(particles, settings, chosen.critic, runner)
    await origin.complete(system, call.seed)
    for on_start in features.on_start:
        await on_start(system)
    return system


def _has_reader(writer: Any) -> bool:
    """Whether the custom stream is read: listening to particles costs a tenth of a step."""
    # Without a reader, LangGraph's writer is a function without a closure, hence without a stream.
    return getattr(writer, "__closure__", writer) is not None


def _seed(settings: Settings, of_call: int | None) -> int:
    """Return the seed of the call, or else of the settings, or else a random one."""
    chosen = settings.seed if of_call is None else of_call
    return secrets.randbelow(2**63) if chosen is None else chosen


async def _connect(critic: Any, settings: Settings, outlet: Outlet, features: Features) -> None:
    """Connect the critic to its server before the first call of the policy."""
    if not settings.may_call_critic:
        return
    try:
        with metering(outlet.meter), features.asking_critic():
            await connect(critic)
    except CriticError as error:
        if settings.on_critic_error == "raise":
            raise
        outlet.notes.append(
            f"before the first step: the critic could not be connected; it will be called nevertheless ({error})"
        )


def _world_notes(worlds: Sequence[RecordingWorld | None]) -> list[str]:
    """Return what the first world says about itself by an attribute `run_note`, such as how it is copied."""
    note = None if worlds[0] is None else getattr(worlds[0].inner, "run_note", None)
    return [note] if isinstance(note, str) and note else []


def _for_worlds(settings: Settings, worlds: Sequence[RecordingWorld | None], wrapped: WrappedAgent) -> Settings:
    """Turn rewards off if they should come from worlds that have none."""
    if worlds[0] is None or worlds[0].gives_rewards or settings.rewards not in ("world", "both"):
        return settings
    if wrapped.rewards_named:
        raise ConfigurationError(
            f'rewards="{settings.rewards}" needs worlds with rewards, but environment= returned a world without reset '
            "and step: omit rewards=, or return (Environment, Task)"
        )
    settings = replace(settings, rewards=None)
    settings.require_source_of_weights()
    return settings


def _nodes_at_doors(wrapped: WrappedAgent, *, judged: bool) -> dict[str, Any]:
    """Return the agent's nodes, at a door if the agent has commits, or features judge its calls."""
    commits = wrapped.effects.commit_nodes
    if not judged and not wrapped.effects.has_doors:
        return dict(wrapped.agent.nodes)
    return {name: _at_door(name, node, commits.get(name)) for name, node in wrapped.agent.nodes.items()}


def _at_door(name: str, node: Any, effect: Effect | None) -> Any:
    if effect is None and type(node.bound) is CompiledStateGraph:
        nodes = {inner: _at_door(inner, below, None) for inner, below in node.bound.nodes.items()}
        bound = node.bound.copy(update={"nodes": nodes})
        return node.copy({"bound": bound, "subgraphs": [bound]})
    return node.copy({"bound": NodeAtDoor(name, node.bound, effect)})


class Origin(Protocol):
    """Where the particles of a run come from."""

    seed: int
    meter: Meter
    """The usage so far."""
    spent_s: float
    """Seconds that the run has already taken."""
    run_id: str | None
    """Identifier of the run that goes on; None: it begins."""

    async def create_worlds(
        self, wrapped: WrappedAgent, given: State, worlds: Worlds, features: Features
    ) -> tuple[Sequence[RecordingWorld | None], Task | None]:
        """Create the particles' worlds."""
        ...

    def create_particles(
        self, given: State, task: Task | None, worlds: Sequence[RecordingWorld | None], start: Beginning
    ) -> list[Particle]:
        """Create the particles that act in these worlds, first those of the live slots."""
        ...

    async def complete(self, system: ParticleSystem, seed: int | None) -> None:
        """Finish the new population.

        Args:
            system: with the particles.
            seed: of this call; None: the call gives none.
        """
        ...


class Beginning(NamedTuple):
    """What every particle is created with."""

    wrapped: WrappedAgent
    saver: ForkSaver


class FromInput:
    """New particles, which start from the agent's input.

    Args:
        seed: of the run.
        n_particles: their number.
        earlier: number of particles of the earlier rounds of an adaptive run.
    """

    def __init__(self, seed: int, n_particles: int, earlier: int = 0) -> None:
        self.seed, self.meter, self.spent_s = seed, Meter(), 0.0
        self.run_id: str | None = None
        stream = [seed, 2, earlier] if earlier else [seed, 0]
        self._worlds_rng, *self._rngs = np.random.default_rng(stream).spawn(n_particles + 1)

    async def create_worlds(
        self, wrapped: WrappedAgent, given: State, worlds: Worlds, features: Features
    ) -> tuple[Sequence[RecordingWorld | None], Task | None]:
        """Create the world of each particle."""
        n_particles, make = len(self._rngs), wrapped.environment
        if make is None:
            return [None] * n_particles, None

        async def begin(world: Forkable) -> None:
            for on_world in features.on_world:
                await on_world(world)

        return await make_worlds(lambda: make(given), n_particles, self._worlds_rng, worlds, begin)

    def create_particles(
        self, given: State, task: Task | None, worlds: Sequence[RecordingWorld | None], start: Beginning
    ) -> list[Particle]:
        """Create the particles with the input as their state."""
        reader = MessageReader.start(given["messages"], task) if start.wrapped.trajectory is None else None
        particles = [
            Particle(
                Past(_first_input(start.wrapped.agent, own_containers(given)), reader),
                rng,
                index,
                world,
                Door(start.wrapped.effects.tools),
            )
            for index, (rng, world) in enumerate(zip(self._rngs, worlds, strict=True))
        ]
        own = start.wrapped.agent.builder.schemas[start.wrapped.agent.builder.input_schema]
        kept = {key: value for key, value in given.items() if key not in own}
        for particle in particles if kept else ():
            start.saver.begin_thread(particle.thread_id, kept)
        return particles

    async def complete(self, system: ParticleSystem, seed: int | None) -> None:
        """Nothing is left to do."""


def _first_input(agent: contract.Agent, given: State) -> dict[str, Any]:
    """Convert the values of the outer graph's channels to the agent's input.

    These values are reduced already, so channels with a reducer are overwritten. Pydantic and dataclass inputs are
    validated and do not accept an `Overwrite`.
    """
    schema = agent.builder.input_schema
    typed_dict = is_typeddict(schema)
    return {
        key: overwriting(agent, key, value) if typed_dict else value
        for key, value in given.items()
        if key in agent.builder.schemas[schema]
    }


def overwriting(agent: contract.Agent, key: str, value: Any) -> Any:
    """Wrap the value of a channel with a reducer in `Overwrite`."""
    channel = agent.channels.get(key)
    return Overwrite(value) if isinstance(channel, (BinaryOperatorAggregate, DeltaChannel)) else value
