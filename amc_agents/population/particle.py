"""The state of one particle: a thread of the wrapped agent, its world, and what it has earned."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.messages import AIMessage, ToolCall
from langgraph.types import Command, Interrupt

from amc_agents.messages import MessageReader, as_message
from amc_agents.population.features.agent_events import AgentEvent
from amc_agents.population.features.store_views import ParticleStore
from amc_agents.population.particle_trace import ParticleTrace
from amc_agents.population.segment import Segment
from amc_agents.runtime.door import Door, PendingCall
from amc_agents.runtime.tracing import NO_SPAN, AgentSpan
from amc_agents.runtime.world import RecordingWorld
from amc_agents.types import Trajectory

State = Mapping[str, Any]
"""The values of an agent's channels."""
TrajectoryFunction = Callable[[State], Trajectory]
"""Builds the trajectory so far from the state of an agent that does not keep messages."""


@dataclass
class Particle:
    """The current state of a particle. Only its `ParticleRunner` changes it."""

    state: State
    """The agent's channels at the last pause; at first, the agent's input."""
    rng: np.random.Generator
    """The particle's random stream, from which seeded models and worlds draw."""
    reader: MessageReader | None
    """The messages read so far; None if `trajectory=` is given."""
    world: RecordingWorld | None = None
    store: ParticleStore | None = None
    """Its view of the agent's store, if the agent has a store."""
    index: int = 0
    """Its slot in the population, which never changes."""
    proposal: int = 0
    """The slot in which its line began, which chooses its entry of `proposals`."""
    ancestor: int | None = None
    """Slot of the particle that the agent's current run continues; its own slot after it was forked."""
    thread_id: str = field(default_factory=lambda: uuid4().hex)
    steps: int = 0
    """Number of steps; a step ends with a pause of the agent."""
    saved: bool = False
    """Whether its thread has a checkpoint to continue from."""
    supersteps: int = 0
    """Number of the agent's supersteps up to this checkpoint."""
    finished: bool = False
    """Whether the agent ended, or the horizon was reached."""
    at_horizon: bool = False
    """Whether the horizon ended it."""
    return_: float = 0.0
    """R_t: the sum of the observed rewards."""
    world_return: float = 0.0
    """The part of `return_` that came from the world."""
    segment: Segment | None = None
    """Its usage since the last fork; None before its first step."""
    queued: bool = False
    """Whether its next step waits for the steps of other particles (`max_concurrency`)."""
    error: Exception | None = None
    """The failure of a model, tool or world that ended it."""
    hand_off: Command[Any] | None = None
    """The command for the surrounding graph, if the agent ended by a hand-off to another agent."""
    door: Door = field(default_factory=Door)
    """Holds its calls of commit tools."""
    held: bool = False
    """Whether an interrupt holds it within a superstep: before a commit call, or at a question to a human."""
    questions: tuple[Interrupt, ...] = ()
    """The questions to a human that hold it."""
    edit: Mapping[str, Any] | None = None
    """`update` and `goto` of the human's command, for its next start with answers."""
    stream: AsyncGenerator[Any, None] | None = None
    """The stream of the paused agent; None if the agent has not started or has ended."""
    trace: ParticleTrace | None = None
    """The traced run of its agent, once it has started."""
    events: list[AgentEvent] = field(default_factory=list)
    """The runs of its models and tools that its readers have not seen."""
    span: AgentSpan = NO_SPAN
    """The span of its agent's last start, which a fork continues."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The context variables of its agent, the same in every step."""

    @property
    def running(self) -> bool:
        """Whether it can make another step, now or after waiting."""
        return not self.finished and self.error is None

    @property
    def can_step(self) -> bool:
        """Whether it can make another step now, and does not wait."""
        return self.running and not self.held

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The commit calls that hold it, in the order of the model's message."""
        place = {call["id"]: number for number, call in enumerate(self._listed_calls)}
        return tuple(sorted(self.door.waiting.values(), key=lambda call: place.get(call.call_id, len(place))))

    @property
    def unlisted_calls(self) -> list[PendingCall]:
        """The commit calls that hold it and are not in its messages, such as those of a subgraph."""
        listed = [(call["name"], call["args"]) for call in self._listed_calls]
        return [call for call in self.pending if (call.name, dict(call.args)) not in listed]

    @property
    def _listed_calls(self) -> list[ToolCall]:
        """The tool calls of its last message from a model."""
        messages = map(as_message, reversed(self.state.get("messages", ())))
        return next((message.tool_calls for message in messages if isinstance(message, AIMessage)), [])

    @property
    def ended(self) -> bool:
        """Whether no further reward is possible, because the agent or the world has ended."""
        return self.finished or (self.world is not None and self.world.ended)

    @property
    def truncated(self) -> bool:
        """Whether a step limit ended it: the horizon or the limit of its world."""
        if self.world is not None and self.world.ended:
            return self.world.truncated
        return self.at_horizon
