"""One particle: a thread of the wrapped agent, its world, and its past, which its offspring share."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.messages import AIMessage, ToolCall
from langgraph.types import Command, Interrupt

from amc_agents.messages import MessageReader, as_message
from amc_agents.runtime.door import Door, PendingCall
from amc_agents.runtime.world import RecordingWorld
from amc_agents.types import Trajectory

State = Mapping[str, Any]
"""The values of an agent's channels."""
TrajectoryFunction = Callable[[State], Trajectory]
"""Builds the trajectory so far from the state of an agent that does not keep messages."""


@dataclass(frozen=True)
class Past:
    """What a particle has lived through, up to its last pause. A fork takes it over as it is."""

    state: State
    """The agent's channels at the last pause; at first, the agent's input."""
    reader: MessageReader | None
    """The messages read so far; None if `trajectory=` is given."""
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
    error: Exception | None = None
    """The failure of a model, tool or world that ended it."""
    dropped: bool = False
    """Whether the run goes on without it, although it has neither finished nor failed."""
    hand_off: Command[Any] | None = None
    """The command for the surrounding graph, if the agent ended by a hand-off to another agent."""
    held: bool = False
    """Whether an interrupt holds it within a superstep: before a commit call, or at a question to a human."""
    questions: tuple[Interrupt, ...] = ()
    """The questions to a human that hold it."""


@dataclass
class Particle:
    """A particle in its slot. Only its `ParticleRunner` changes it."""

    past: Past
    rng: np.random.Generator
    """The particle's random stream, from which seeded models and worlds draw."""
    index: int = 0
    """Its slot in the population, which never changes."""
    world: RecordingWorld | None = None
    door: Door = field(default_factory=Door)
    """Holds its calls of commit tools."""
    ancestor: int | None = None
    """Slot of the particle that the agent's current run continues; its own slot after it was forked."""
    thread_id: str = field(default_factory=lambda: uuid4().hex)
    stream: AsyncGenerator[Any, None] | None = None
    """The stream of the paused agent; None if the agent has not started or has ended."""
    task: asyncio.Task[None] | None = None
    """The task in which it runs, or last ran."""
    queued: bool = False
    """Whether its next step waits for the steps of other particles (`max_concurrency`)."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The context variables of its agent, the same in every step."""
    states: dict[type[Any], Any] = field(default_factory=dict)
    """What features keep of it, by feature."""

    def record(self, **changes: Any) -> None:
        """Replace its past by one with these changes."""
        self.past = replace(self.past, **changes)

    def of(self, feature: type[Any]) -> Any:
        """Return what a feature keeps of this particle; None: nothing."""
        return self.states.get(feature)

    @property
    def state(self) -> State:
        """The agent's channels at the last pause."""
        return self.past.state

    @property
    def reader(self) -> MessageReader | None:
        """The messages read so far; None if `trajectory=` is given."""
        return self.past.reader

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.past.steps

    @property
    def finished(self) -> bool:
        """Whether the agent ended, or the horizon was reached."""
        return self.past.finished

    @property
    def return_(self) -> float:
        """R_t: the sum of the observed rewards."""
        return self.past.return_

    @property
    def error(self) -> Exception | None:
        """The failure that ended it."""
        return self.past.error

    @property
    def held(self) -> bool:
        """Whether an interrupt holds it within a superstep."""
        return self.past.held

    @property
    def succeeded(self) -> bool:
        """Whether it ended without a failure."""
        return self.past.finished and self.past.error is None

    @property
    def running(self) -> bool:
        """Whether it can make another step, now or after waiting."""
        return not self.past.finished and not self.lost

    @property
    def lost(self) -> bool:
        """Whether it failed or was dropped: its weight is 0, and it cannot be the answer."""
        return self.past.error is not None or self.past.dropped

    @property
    def can_step(self) -> bool:
        """Whether it can make another step now, and does not wait."""
        return self.running and not self.past.held

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
        return self.past.finished or (self.world is not None and self.world.ended)

    @property
    def truncated(self) -> bool:
        """Whether a step limit ended it: the horizon or the limit of its world."""
        if self.world is not None and self.world.ended:
            return self.world.truncated
        return self.past.at_horizon
