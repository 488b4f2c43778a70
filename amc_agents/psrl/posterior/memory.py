"""A posterior's versions, the chain of those that led to its head, and the memory that stores them.

Versions form a tree, since each names its parent. Among the children of a version, the child leads whose branch
contains the owner's earliest edit or rollback. Without any edit the longest branch leads, and among equally long
branches the first. So an owner takes precedence over evidence, an edit over later edits elsewhere, and a version that a
slow process adds late does not displace what others have built in the meantime.

Evidence in displaced versions is applied again to the head.
"""

from __future__ import annotations

import asyncio
import math
import threading
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol
from weakref import WeakKeyDictionary

from typing_extensions import override

from amc_agents.errors import PosteriorError
from amc_agents.quoting import quoted

Cause = Literal["prior", "evidence", "edit", "rollback"]


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Evidence:
    """An observation that the posterior must account for."""

    episode: str
    """Name of the episode in which it was made."""
    observation: str
    """The observation as text: a trajectory, or a single step."""
    id: str = field(default_factory=_new_id)
    """Identifies the evidence, which is applied once per id. Pass your own id (episode and step, say) so that a call
    repeated after a restart has no effect."""
    must_keep: tuple[str, ...] = ()
    """Statements of the posterior that the first try dropped, for the updater's prompt on the second try."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the posterior, and its cause."""

    text: str
    """The whole posterior."""
    cause: Cause
    """Its cause: the prior, evidence, an edit by the owner, or a rollback by the owner."""
    parent: str | None = None
    """Id of the version it was derived from; None for the first version."""
    number: int = 1
    """Position in the order in which versions were added, from 1. Processes that write at the same moment may use the
    same number."""
    evidence: Evidence | None = None
    """The evidence that was applied, if the cause is evidence."""
    dropped: tuple[str, ...] = ()
    """Statements of the parent that the guard misses here, even after a second try."""
    restores: str | None = None
    """Id of the version whose text was restored, if the cause is a rollback."""
    note: str = ""
    """The owner's note."""
    id: str = field(default_factory=_new_id)
    """Unique id."""
    made_at: str = field(default_factory=_now)
    """Time of creation: ISO 8601, UTC."""

    @property
    def by_owner(self) -> bool:
        """True if the owner wrote this version. It takes precedence over evidence that arrived in the meantime."""
        return self.cause in ("edit", "rollback")


Apply = Callable[[str, Evidence], Awaitable[str]]
"""Maps the posterior and new evidence to the whole new posterior. An exception means that the update failed."""

Guard = Callable[[str, str], Sequence[str]]
"""Maps the old text and the new text to the statements of the old text that the new text dropped."""


class Lineage:
    """The versions of one posterior, and the chain of those that led to its head."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        self.versions: list[Version] = []
        """Every version, in the order of addition."""
        self.chain: list[Version] = []
        """Versions that led to the head, oldest first, with the head last."""
        self.settled: set[str] = set()
        """Ids of the evidence that the chain accounts for."""
        self.add(versions)

    @property
    def head(self) -> Version:
        """Last version of the chain.

        Raises:
            PosteriorError: the posterior has no version.
        """
        if not self.chain:
            raise PosteriorError("this posterior has no version yet: give it a prior to begin with")
        return self.chain[-1]

    @property
    def next_number(self) -> int:
        """Number of the next version."""
        return self.versions[-1].number + 1 if self.versions else 1

    def add(self, versions: Iterable[Version]) -> None:
        """Add versions and derive the head again.

        Raises:
            PosteriorError: the parent of a version is missing.
        """
        rest = deque(versions)
        while rest and rest[0].parent == (self.chain[-1].id if self.chain else None):
            # The common case, a child of the head: the rest of the chain stays.
            self.versions.append(rest[0])
            self._extend(rest.popleft())
        if rest:
            ordered = sorted([*self.versions, *rest], key=lambda version: (version.number, version.id))
            chain = _chain_of(ordered)
            self.versions, self.chain, self.settled = ordered, [], set()
            for version in chain:
                self._extend(version)

    def displaced(self) -> list[Evidence]:
        """Return the evidence of displaced versions that the chain does not account for."""
        if len(self.chain) == len(self.versions):
            return []
        by_id = {version.evidence.id: version.evidence for version in self.versions if version.evidence is not None}
        return [evidence for evidence in by_id.values() if evidence.id not in self.settled]

    def _extend(self, version: Version) -> None:
        self.chain.append(version)
        if version.evidence is not None:
            self.settled.add(version.evidence.id)


def _chain_of(versions: Sequence[Version]) -> list[Version]:
    """Return the versions that led to the head, given all versions in order."""
    known = {version.id for version in versions}
    children: dict[str | None, list[Version]] = {}
    first_edit: dict[str, float] = {}
    """Number of the earliest version by the owner in a version's branch."""
    length: dict[str, int] = {}
    """Versions on the longest path from a version to a leaf."""
    for version in reversed(versions):  # Children come after their parents.
        if version.parent is not None and version.parent not in known:
            raise PosteriorError(
                f"version {version.number} ({version.id}) started from version {version.parent}, which is missing "
                "from the store: restore it from a backup"
            )
        branches = children.get(version.id, [])
        own_edit = version.number if version.by_owner else math.inf
        first_edit[version.id] = min([own_edit, *(first_edit[child.id] for child in branches)])
        length[version.id] = 1 + max((length[child.id] for child in branches), default=0)
        children.setdefault(version.parent, []).insert(0, version)
    chain: list[Version] = []
    leading: str | None = None
    while leading in children:
        chain.append(min(children[leading], key=lambda child: (first_edit[child.id], -length[child.id])))
        leading = chain[-1].id
    return chain


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
