"""Where the particles of a run come from: here the agent's input; `durable.recorded` has the other origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.store.base import BaseStore
from langgraph.types import Overwrite
from typing_extensions import is_typeddict

from amc_agents.messages import MessageReader
from amc_agents.population.containers import own_containers
from amc_agents.population.conversation import ConversationWorld
from amc_agents.population.particle import Particle, State
from amc_agents.population.population import ParticleSystem
from amc_agents.population.saver import ForkSaver
from amc_agents.population.store.view import ParticleStore
from amc_agents.population.wrapped_agent import WrappedAgent
from amc_agents.runtime import contract
from amc_agents.runtime.door import Door
from amc_agents.runtime.world import RecordingWorld, Worlds, make_worlds
from amc_agents.types import Task
from amc_agents.usage import Meter


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
