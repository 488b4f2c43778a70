"""Stream the answer's messages while the search runs (`emit="settled"`).

A message is settled when every candidate for the answer shares it: whichever of them is selected, the answer has it.
Offspring share the messages of their ancestor, so a resampling that leaves a single line settles its past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from itertools import takewhile
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.runnables import RunnableConfig
from langgraph.graph.message import push_message

from amc_agents.messages import message_key
from amc_agents.population.particle import Particle
from amc_agents.runtime.calls import stream_listeners, takes_chunks


class SettledStream:
    """Writes messages to the `messages` stream of the outer graph as soon as they are settled, each of them once.

    Messages without an id wait for the end of the run: their reader could not tell that it has them already.

    Args:
        given: the messages of the input, which are not part of the answer.
        candidates: returns the particles that can still become the answer; empty if others may still start.
    """

    def __init__(self, given: Iterable[BaseMessage], candidates: Callable[[], Sequence[Particle]]) -> None:
        self._given = [*given]
        self._sent = set(map(message_key, self._given))
        self._candidates = candidates
        self._context: Context | None = None
        self._tokens = True

    def begin(self, config: RunnableConfig) -> None:
        """Stream from the calling node on, and write what is settled so far.

        Args:
            config: of the node; without a listener, nothing is written.
        """
        listeners = stream_listeners(config)
        self._context = copy_context() if listeners else None
        self._tokens = all(map(takes_chunks, listeners))
        self.send()

    def send(self) -> None:
        """Write the messages that have been settled since the last call."""
        if self._context is None:
            return
        shared = shared_prefix(map(self._unsent, self._candidates()))
        for message in takewhile(lambda message: message.id is not None, shared):
            self._write(message)

    def wants_tokens_of(self, particle: Particle) -> bool:
        """Whether a particle is the only candidate, so that each token of its model is settled."""
        listens = self._context is not None and self._tokens
        return listens and [*map(id, self._candidates())] == [id(particle)]

    def send_token(self, token: Any) -> None:
        """Write a token of the only candidate's model; a whole message is written at the end of its superstep."""
        if isinstance(token, BaseMessageChunk) and token.id is not None:
            self._write(token)

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
