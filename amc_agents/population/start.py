"""Start a run: connect the critic, create the worlds and the particles."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.config import get_stream_writer
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Overwrite
from typing_extensions import is_typeddict

from amc_agents.budget import Purse, Spender, spenders
from amc_agents.concurrency.background import on_background_loop
from amc_agents.critics.adapting import connect
from amc_agents.errors import BudgetExhausted, ConfigurationError, CriticError, RunTimedOut
from amc_agents.messages import MessageReader
from amc_agents.population.agent_streams import AgentStreams
from amc_agents.population.features.agent_events import AgentEvents, EventListener, event_listener
from amc_agents.population.features.conversation_world import ConversationWorld
from amc_agents.population.features.settled import SettledStream
from amc_agents.population.features.store_views import ParticleStore
from amc_agents.population.features.watchers import begin_watching
from amc_agents.population.open_run import OpenRun
from amc_agents.population.particle import Particle, State
from amc_agents.population.particle_runner import ParticleRunner
from amc_agents.population.rewards import Rewards
from amc_agents.population.run_budget import RunBudget
from amc_agents.population.saver import ForkSaver, carrying, own_containers
from amc_agents.population.settings import Settings, WrappedAgent
from amc_agents.population.system import ParticleSystem, Recruit
from amc_agents.population.time_limits import Deadline
from amc_agents.prices import Rates
from amc_agents.runtime import calls, contract
from amc_agents.runtime.budget_keeper import paying_from
from amc_agents.runtime.door import Door, NodeAtDoor
from amc_agents.runtime.effects import Effect, has_sync_form
from amc_agents.runtime.known_models import check_affordable, pass_caches_by
from amc_agents.runtime.metering import PolicyMeter, policy_meter
from amc_agents.runtime.tracing import RunSpan
from amc_agents.runtime.world import RecordingWorld, Worlds, make_worlds
from amc_agents.types import Task
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
    owner = OpenRun.of(config)
    shown = contract.as_state(wrapped.agent, given)
    settings = wrapped.settings
    pass_caches_by()
    call = calls.read_call(wrapped.agent, runtime.context, config)
    conversation = ConversationWorld(config)
    origin = point or FromInput(_seed(settings, call.seed), settings.start_size, conversation)
    chosen = await wrapped.critics.for_call(call.critic, call.critic_from)
    settings = replace(settings, critic=chosen.name, critic_from=chosen.source)
    settings.require_source_of_weights()
    meter, purses_around = origin.meter, spenders()
    owner.purse = purse = _purse(settings, wrapped.prices, origin)
    deadline = _deadline(settings, origin.spent_s)
    async with deadline.cutting():
        notes = await _connect(chosen.critic, settings, meter, purse)
        worlds, task = await origin.create_worlds(wrapped, shown, owner.worlds)
        connected = settings.may_call_critic
        settings = _for_worlds(settings, worlds, wrapped)
        if not connected:
            notes = await _connect(chosen.critic, settings, meter, purse)
    if deadline.passed:
        raise _too_late(deadline, settings)
    if purse is not None:
        check_affordable(purse.budget, purse.prices, wrapped.agent, chosen.critic, call.context, worlds, task)
    emit = get_stream_writer()
    runner = _runner(
        wrapped,
        settings,
        meter,
        agent_context=call.context,
        on_event=event_listener(emit) if owner.wants_events else None,
        events=AgentEvents.of(config, everyone=settings.emit == "all"),
        settled=_settled(settings, given, owner),
        nested="|" in config["configurable"].get("checkpoint_ns", ""),
        purse=purse,
        purses_around=purses_around,
        max_concurrency=owner.max_concurrency or config.get("max_concurrency"),
        span=owner.span,
    )
    beginning = Beginning(wrapped, runtime.store or wrapped.agent.store, runner.streams.saver)
    owner.system = _OpaqueSystem(
        worlds=owner.worlds,
        runner=runner,
        settings=settings,
        critic=chosen.critic,
        seed=origin.seed,
        meter=meter,
        emit=emit,
        deadline=deadline,
        notes=[*call.notes, *notes, *_world_notes(worlds)],
        particles=origin.create_particles(given, task, worlds, beginning),
        recruit=_recruit(given, shown, beginning, owner.worlds, origin.seed, conversation),
    )
    await origin.complete(owner.system, call.seed)
    if purse is not None:
        purse.run_id = owner.system.runner.streams.run_id
        weighs = not settings.rewards_observed
        owner.system.budget = RunBudget(purse, owner.system.everyone, keeps_weighing=weighs)
    owner.watcher = begin_watching(owner.system)
    return owner.system


def _seed(settings: Settings, of_call: int | None) -> int:
    """Return the seed of the call, or else of the settings, or else a random one."""
    chosen = settings.seed if of_call is None else of_call
    return secrets.randbelow(2**63) if chosen is None else chosen


def _recruit(
    given: State, shown: State, beginning: Beginning, worlds: Worlds, seed: int, conversation: ConversationWorld
) -> Recruit:
    """Return the function that creates the particles of later rounds, with random streams of their own."""

    async def recruit(n_particles: int, earlier: int) -> list[Particle]:
        origin = FromInput(seed, n_particles, conversation, earlier)
        made, task = await origin.create_worlds(beginning.wrapped, shown, worlds)
        return origin.create_particles(given, task, made, beginning)

    return recruit


def _deadline(settings: Settings, spent_s: float) -> Deadline:
    """Return the earlier of the ends of `run_timeout` and of the budget's seconds."""
    seconds = None if settings.budget is None else settings.budget.left.get("seconds")
    if seconds is not None and (settings.run_timeout is None or seconds + spent_s < settings.run_timeout):
        return Deadline(seconds + spent_s, spent_s, of="budget")
    return Deadline(settings.run_timeout, spent_s)


def _settled(settings: Settings, given: State, owner: OpenRun) -> SettledStream | None:
    messages = given.get("messages")
    if settings.emit != "settled" or not isinstance(messages, list):
        return None
    return SettledStream(messages, lambda: [] if owner.system is None else owner.system.candidates)


def _purse(settings: Settings, prices: Mapping[str, Rates], origin: Origin) -> Purse | None:
    if settings.budget is None:
        return None
    purse = Purse(settings.budget, prices)
    if origin.run_id is not None:
        purse.resume(origin.run_id, origin.meter.by_model(), origin.spent_s)
    return purse


def _too_late(deadline: Deadline, settings: Settings) -> Exception:
    if deadline.of == "budget" and settings.budget is not None:
        return BudgetExhausted(settings.budget.limits, settings.budget.spent)
    return RunTimedOut(deadline.limit_s or 0.0)


async def _connect(critic: Any, settings: Settings, meter: Meter, purse: Purse | None) -> list[str]:
    """Connect the critic to its server before the first call of the policy, and return notes for the run."""
    if not settings.may_call_critic:
        return []
    try:
        with metering(meter), paying_from(purse):
            await connect(critic)
    except CriticError as error:
        if settings.on_critic_error == "raise":
            raise
        return [f"before the first step: the critic could not be connected; it will be called nevertheless ({error})"]
    return []


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


def _runner(
    wrapped: WrappedAgent,
    settings: Settings,
    meter: Meter,
    *,
    agent_context: Any,
    on_event: EventListener | None,
    events: AgentEvents | None,
    settled: SettledStream | None,
    nested: bool,
    purse: Purse | None,
    purses_around: tuple[Spender, ...],
    max_concurrency: int | None,
    span: RunSpan,
) -> ParticleRunner:
    saver = ForkSaver()
    streams = AgentStreams(
        agent=wrapped.agent.copy(
            update={
                "checkpointer": saver,
                "nodes": _nodes_at_doors(wrapped),
                "channels": carrying(wrapped.agent.channels),
            }
        ),
        saver=saver,
        step_after=frozenset(wrapped.step_after),
        horizon=settings.horizon,
        rewards=Rewards(settings.rewards, wrapped.reward, in_thread=settings.step_timeout is not None),
        agent_context=agent_context,
        on_event=on_event,
        events=events,
        in_threads=on_background_loop() and has_sync_form(wrapped.agent),
        settled=settled,
        max_concurrency=max_concurrency,
        proposals=settings.proposals,
        nested=nested,
        span=span,
    )
    return ParticleRunner(
        streams=streams,
        meter=PolicyMeter(meter, around=policy_meter()),
        step_timeout=settings.step_timeout,
        trajectory=wrapped.trajectory,
        purse=purse,
        purses_around=purses_around,
        slots=asyncio.Semaphore(max_concurrency) if max_concurrency else None,
    )


def _nodes_at_doors(wrapped: WrappedAgent) -> dict[str, Any]:
    """Return the agent's nodes, at a door if the agent has commits."""
    commits = wrapped.effects.commit_nodes
    if not commits and all(effect in ("read", "world") for effect in wrapped.effects.tools.values()):
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
        self, wrapped: WrappedAgent, given: State, worlds: Worlds
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
    base_store: BaseStore | None
    saver: ForkSaver


class FromInput:
    """New particles, which start from the agent's input.

    Args:
        seed: of the run.
        n_particles: their number.
        conversation: restores the world of the previous turn.
        earlier: number of particles of the earlier rounds of an adaptive run.
    """

    def __init__(self, seed: int, n_particles: int, conversation: ConversationWorld, earlier: int = 0) -> None:
        self._conversation, self._earlier = conversation, earlier
        self.seed, self.meter, self.spent_s = seed, Meter(), 0.0
        self.run_id: str | None = None
        stream = [seed, 2, earlier] if earlier else [seed, 0]
        self._worlds_rng, *self._rngs = np.random.default_rng(stream).spawn(n_particles + 1)

    async def create_worlds(
        self, wrapped: WrappedAgent, given: State, worlds: Worlds
    ) -> tuple[Sequence[RecordingWorld | None], Task | None]:
        """Create the world of each particle."""
        n_particles, make = len(self._rngs), wrapped.environment
        if make is None:
            return [None] * n_particles, None
        return await make_worlds(lambda: make(given), n_particles, self._worlds_rng, worlds, self._conversation.begin)

    def create_particles(
        self, given: State, task: Task | None, worlds: Sequence[RecordingWorld | None], start: Beginning
    ) -> list[Particle]:
        """Create the particles with the input as their state."""
        reader = MessageReader.start(given["messages"], task) if start.wrapped.trajectory is None else None
        store = None if start.base_store is None else ParticleStore(start.base_store)
        particles = [
            Particle(
                state=_first_input(start.wrapped.agent, own_containers(given)),
                rng=rng,
                reader=reader,
                world=world,
                store=store.fork() if store else None,
                index=index,
                proposal=self._earlier + index,
                door=Door(start.wrapped.effects.tools),
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
