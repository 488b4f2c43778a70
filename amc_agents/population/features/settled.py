"""Stream the answer's messages while the search runs (`emit="settled"`).

A message is settled when every candidate for the answer shares it: whichever of them is selected, the answer has it.
Offspring share the messages of their ancestor, so a resampling that leaves a single line settles its past.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from itertools import takewhile
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage, BaseMessageChunk
from langgraph.config import get_config
from langgraph.graph.message import push_message

from amc_agents.messages import message_key
from amc_agents.population.feature import AgentStart, Feature
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.runtime.calls import stream_listeners, takes_chunks


class SettledStream(Feature):
    """Writes messages to the `messages` stream of the outer graph as soon as they are settled, each of them once.

    Messages without an id wait for the end of the run: their reader could not tell that it has them already.

    Args:
        given: the messages of the input, which are not part of the answer.
    """

    def __init__(self, given: Iterable[BaseMessage]) -> None:
        self._given = [*given]
        self._sent = set(map(message_key, self._given))
        self._system: ParticleSystem | None = None
        self._context: Context | None = None
        """That of the calling node; None: nobody listens."""
        self._tokens = True

    async def on_start(self, system: ParticleSystem) -> None:
        """Follow the candidates of a run."""
        self._system = system

    @asynccontextmanager
    async def around(self, verb: str, system: ParticleSystem | None) -> AsyncIterator[None]:
        """Stream from the calling node on, and write what is settled so far."""
        if verb == "propagate":
            listeners = stream_listeners(get_config())
            self._context = copy_context() if listeners else None
            self._tokens = all(map(takes_chunks, listeners))
            self._send()
        yield

    async def before_step(self, particle: Particle) -> None:
        """End a stream without tokens if its particle is the only one left: the next stream has them."""
        if particle.stream is not None and not particle.of(SettledStream) and self.wants_tokens_of(particle):
            assert self._system is not None
            await self._system.runner.streams.end(particle, "saved")
            self._system.runner.streams.has_checkpoint(particle)

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """Read the tokens of a particle that is the only one left."""
        particle.states[SettledStream] = alone = self.wants_tokens_of(particle)
        if alone:
            start.stream_mode.append("messages")

    def on_output(self, particle: Particle, mode: str, chunk: Any) -> None:
        """Write what a superstep has settled, or a token of the only candidate."""
        if mode == "values":
            self._send()
        elif mode == "messages" and isinstance(token := chunk[0], BaseMessageChunk) and token.id is not None:
            self._write(token)

    def wants_tokens_of(self, particle: Particle) -> bool:
        """Whether a particle is the only candidate, so that each token of its model is settled."""
        listens = self._context is not None and self._tokens
        return listens and [*map(id, self._candidates())] == [id(particle)]

    def _candidates(self) -> list[Particle]:
        """The particles that can still become the answer, or its ancestors; empty if new ones may still start."""
        system = self._system
        if system is None or any(may_recruit(system) for may_recruit in system.features.may_recruit):
            return []
        everyone = zip(system.everyone, np.isfinite(system.log_weights), strict=True)
        candidates = [particle for particle, weighted in everyone if weighted and not particle.lost]
        archived = system.archive is not None and all(system.archive is not particle for particle in candidates)
        return [*candidates, system.archive] if system.archive is not None and archived else candidates

    def _send(self) -> None:
        """Write the messages that have been settled since the last call."""
        if self._context is None:
            return
        shared = shared_prefix(map(self._unsent, self._candidates()))
        for message in takewhile(lambda message: message.id is not None, shared):
            self._write(message)

    def _unsent(self, particle: Particle) -> list[BaseMessage]:
        messages = particle.state.get("messages")  # Before the first superstep, an `Overwrite` of the input.
        if not isinstance(messages, list):
            return []
        # A listener gives an id to messages that have none, so the input is also recognised by its objects.
        return [
            message for message in messages if message_key(message) not in self._sent and not self._is_given(message)
        ]

    def _is_given(self, message: BaseMessage) -> bool:
        return any(message is given for given in self._given)

    def _write(self, message: BaseMessage) -> None:
        assert self._context is not None
        self._sent.add(message_key(message))
        self._context.run(push_message, message, state_key=None)


def shared_prefix(histories: Iterable[Sequence[BaseMessage]]) -> list[BaseMessage]:
    """Return the messages with which all histories begin; empty for no history."""
    shared: list[BaseMessage] | None = None
    for history in histories:
        if shared is None:
            shared = [*history]
        else:
            shared = [ours for ours, _ in takewhile(_is_same, zip(shared, history, strict=False))]
        if not shared:
            break
    return shared or []


def _is_same(pair: tuple[BaseMessage, BaseMessage]) -> bool:
    """Whether two particles have the same message; agents may number their messages, so ids alone do not tell."""
    ours, theirs = pair
    return ours is theirs or (ours.id is not None and ours.id == theirs.id and ours == theirs)
