"""Journal of unfinished episodes in the posterior's store, which keeps their steps if the process dies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from amc_agents.runtime.store_operations import batch, items_of
from amc_agents.types import Step

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
