"""The protocol of a posterior's memory, and a memory inside the process."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

from typing_extensions import override

from amc_agents.errors import PosteriorError
from amc_agents.psrl.posterior.lineage import Lineage
from amc_agents.psrl.posterior.types import Evidence, Version
from amc_agents.quoting import quoted


class PosteriorMemory(Protocol):
    """Stores the versions and the evidence of one posterior. Nothing in it is ever changed or deleted.

    Subclasses implement the first five methods; the others build on them.
    """

    @abstractmethod
    async def lineage(self) -> Lineage:
        """Return all versions, with the chain of those that led to the head.

        Raises:
            PosteriorError: the posterior has neither a version nor a prior, or a record is damaged.
        """
        ...

    @abstractmethod
    async def append(self, version: Version) -> bool:
        """Add a version under its number.

        Returns:
            False, with nothing added, if versions were added since the caller read the lineage.
        """
        ...

    @abstractmethod
    async def record(self, evidence: Evidence) -> None:
        """Store evidence before it is applied. Evidence whose id is already stored changes nothing."""
        ...

    @abstractmethod
    async def recorded(self) -> Sequence[Evidence]:
        """Return all evidence ever recorded, applied or not, oldest first if the memory keeps the order."""
        ...

    @abstractmethod
    def turn(self) -> AbstractAsyncContextManager[None]:
        """Return a lock that is held during an update, so that updates in one event loop wait instead of racing."""
        ...

    async def head(self) -> Version:
        """Return the current version."""
        return (await self.lineage()).head

    async def history(self) -> Sequence[Version]:
        """Return the versions that led to the head, oldest first, with the head last."""
        return tuple((await self.lineage()).chain)

    async def versions(self) -> Sequence[Version]:
        """Return every version in the order of addition, including those that did not lead to the head."""
        return tuple((await self.lineage()).versions)

    async def pending(self) -> Sequence[Evidence]:
        """Return evidence that is missing from the head: its update failed, was interrupted, or was displaced."""
        recorded = await self.recorded()
        lineage = await self.lineage()
        by_id = {evidence.id: evidence for evidence in (*recorded, *lineage.displaced())}
        return tuple(evidence for evidence in by_id.values() if evidence.id not in lineage.settled)

    async def get(self, id: str) -> Version:
        """Return the version with this id, with an id that starts with this text (4 letters or more), or this number.

        Raises:
            PosteriorError: no version matches, or several do.
        """
        versions = await self.versions()
        matches = [version for version in versions if version.id == id]
        matches = matches or [version for version in versions if str(version.number) == id]
        matches = matches or [version for version in versions if len(id) >= 4 and version.id.startswith(id)]
        if len(matches) == 1:
            return matches[0]
        listed = ", ".join(f"{version.number} ({version.id})" for version in (matches or versions[-8:]))
        raise PosteriorError(
            f"{len(matches)} versions match {quoted(id)}; name a version by its id, such as: {listed}"
            if matches
            else f"no version matches {quoted(id)}: expected a number or an id, such as the newest: {listed}"
        )


class Turns:
    """Locks that serialize updates, one per event loop."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Hold the running event loop's lock."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            yield


class InMemoryPosterior(PosteriorMemory):
    """A posterior in the memory of this process, for tests and experiments.

    Args:
        prior: text of the first version.
    """

    def __init__(self, prior: str) -> None:
        self._lineage = Lineage([Version(prior, "prior")])
        self._evidence: dict[str, Evidence] = {}
        self._turns = Turns()
        self._adding = threading.Lock()

    @override
    async def lineage(self) -> Lineage:
        return self._lineage

    @override
    async def append(self, version: Version) -> bool:
        with self._adding:
            if version.number != self._lineage.next_number:
                return False
            self._lineage.add([version])
            return True

    @override
    async def record(self, evidence: Evidence) -> None:
        self._evidence.setdefault(evidence.id, evidence)

    @override
    async def recorded(self) -> Sequence[Evidence]:
        return tuple(self._evidence.values())

    @override
    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._turns.take()
