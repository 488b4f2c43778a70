"""An episode of a conversation: its messages as steps, and the journal that keeps unfinished episodes.

The journal is in the posterior's store. It keeps an episode's steps if the process dies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from amc_agents.messages import instruction_of, trajectory_from_messages
from amc_agents.runtime.store_operations import batch, items_of
from amc_agents.types import Step, Trajectory


def newest_input(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages after the agent's last action: the input of the episode that begins now."""
    actions = [i for i, message in enumerate(messages) if isinstance(message, AIMessage | ToolMessage)]
    return list(messages[actions[-1] + 1 if actions else 0 :])


def request_text(messages: Sequence[BaseMessage]) -> str:
    """Return the user's request of the episode that begins now, for the updater; empty without any."""
    request = newest_input(messages)
    return f"Asked: {instruction_of(request)}" if request else ""


def message_ids(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the ids of the messages that have an id."""
    return [message.id for message in messages if message.id]


def episode_of(messages: Sequence[BaseMessage], before: Sequence[str]) -> Trajectory:
    """Return the current episode of a conversation.

    Args:
        messages: the conversation.
        before: ids of the messages that precede the episode.
    """
    earlier = set(before)
    return trajectory_from_messages([message for message in messages if message.id not in earlier], done=False)


def answered_steps(trajectory: Trajectory) -> tuple[Step, ...]:
    """Return the steps up to the last that has an observation. A final message without an answer is not evidence."""
    n_answered = max((i for i, step in enumerate(trajectory.steps, 1) if step.observation), default=0)
    return trajectory.steps[:n_answered]


OPEN = "posterior_open_episodes"
"""Last label of the journal's namespace, below that of the posterior."""


@dataclass(frozen=True)
class OpenEpisode:
    """One record of the journal: an episode that has not ended as far as the store knows."""

    name: str
    thread: str | None
    """Id of the thread it runs on, if any."""
    context: str
    """Text for the updater besides the steps."""
    steps: tuple[Step, ...] = ()
    """All steps so far."""
    n_recorded: int = 0
    """Number of steps that are already stored as evidence."""
    at: float = 0.0
    """Time of the last write, in seconds since 1970."""


class OpenEpisodes:
    """The journal of one posterior.

    Args:
        store: the posterior's store.
        namespace: the posterior's namespace.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str]) -> None:
        self._store, self._namespace = store, (*namespace, OPEN)

    async def write(self, episode: OpenEpisode) -> None:
        """Store the episode as of now."""
        value = {
            "thread": episode.thread,
            "told": episode.context,
            "steps": [[step.action, step.observation, step.reward] for step in episode.steps],
            "n_recorded": episode.n_recorded,
            "at": time.time(),
        }
        await batch(self._store, PutOp(self._namespace, episode.name, value, index=False))

    async def close(self, name: str) -> None:
        """Remove an episode that has ended and whose steps are evidence."""
        await batch(self._store, PutOp(self._namespace, name, None))

    async def n_recorded(self, name: str) -> int:
        """Return how many steps of an episode are stored as evidence; 0 if the journal does not have the episode."""
        (item,) = await batch(self._store, GetOp(self._namespace, name, refresh_ttl=False))
        return item.value["n_recorded"] if isinstance(item, Item) else 0

    async def all(self) -> list[OpenEpisode]:
        """Return every record."""
        return [_episode(item) for item in await items_of(self._store, self._namespace)]


def _episode(item: Item) -> OpenEpisode:
    value: dict[str, Any] = item.value
    steps = tuple(Step(action, observation, reward=reward) for action, observation, reward in value["steps"])
    return OpenEpisode(item.key, value["thread"], value["told"], steps, value["n_recorded"], value["at"])
