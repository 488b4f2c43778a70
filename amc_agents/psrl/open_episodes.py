"""Episodes that are under way, kept in the posterior's store: what one saw is found again when its process died."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchOp

from amc_agents.runtime.store_operations import batch
from amc_agents.types import Step

OPEN = "posterior_open_episodes"
"""Under a posterior's namespace: one record for each episode."""
_ALL = 100_000


@dataclass(frozen=True)
class OpenEpisode:
    """An episode that has not ended, as far as the store knows."""

    name: str
    thread: str | None
    """The thread that it runs on, where it has one."""
    told: str
    """What the updater is told of it besides its steps."""
    steps: tuple[Step, ...] = ()
    """All that it saw until now."""
    n_recorded: int = 0
    """Of them, those that are kept as evidence already."""
    at: float = 0.0
    """When it was last written, in seconds since 1970."""


class OpenEpisodes:
    """The open episodes of one posterior.

    Args:
        store: as the posterior's.
        namespace: the posterior's.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str]) -> None:
        self._store, self._namespace = store, (*namespace, OPEN)

    async def write(self, episode: OpenEpisode) -> None:
        """Keep it as it is now."""
        steps = [[step.action, step.observation, step.reward] for step in episode.steps]
        value = {"thread": episode.thread, "told": episode.told, "steps": steps, "n_recorded": episode.n_recorded}
        await batch(
            self._store, PutOp(self._namespace, episode.name, {**value, "at": time.time()}, index=False, ttl=None)
        )

    async def close(self, name: str) -> None:
        """It has ended, and what it saw is evidence."""
        await batch(self._store, PutOp(self._namespace, name, None))

    async def n_recorded(self, name: str) -> int:
        """Steps of it that are evidence; 0 where it is not kept."""
        (item,) = await batch(self._store, GetOp(self._namespace, name, refresh_ttl=False))
        return item.value["n_recorded"] if isinstance(item, Item) else 0

    async def all(self) -> list[OpenEpisode]:
        """All there are."""
        (found,) = await batch(self._store, SearchOp(self._namespace, limit=_ALL, refresh_ttl=False))
        return [_read(item) for item in found if item.namespace == self._namespace]


def _read(item: Item) -> OpenEpisode:
    value: dict[str, Any] = item.value
    steps = tuple(Step(action, observation, reward=reward) for action, observation, reward in value["steps"])
    return OpenEpisode(item.key, value["thread"], value["told"], steps, value["n_recorded"], value["at"])
