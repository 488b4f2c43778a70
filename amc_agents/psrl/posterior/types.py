"""The posterior of an agent, as a text that belongs to its user: versions, evidence, and what remembers them."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Protocol

from amc_agents.errors import PosteriorError

if TYPE_CHECKING:
    from amc_agents.psrl.posterior.lineage import Lineage

Cause = Literal["prior", "evidence", "edit", "rollback"]


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Something that was observed, and that the posterior is to account for."""

    episode: str
    """Name of the episode that it comes from."""
    observation: str
    """What was seen, in words: a trajectory, or one step."""
    id: str = field(default_factory=_new_id)
    """The same id again is the same evidence, and is applied once. One of your own (episode and step, say) makes a
    call that is repeated after a restart harmless."""
    must_keep: tuple[str, ...] = ()
    """On a second try: statements of the posterior that the first try dropped, for the updater's prompt."""


@dataclass(frozen=True, slots=True)
class Version:
    """The posterior as it was at one time, and what made it."""

    text: str
    """The posterior itself."""
    cause: Cause
    """What it came from: the prior, evidence, the owner's edit, or the owner's rollback."""
    parent: str | None = None
    """Id of the version that it started from; None: it is the first."""
    number: int = 1
    """1, 2, ... in the order in which versions were added."""
    evidence: Evidence | None = None
    """What was applied, where the cause is evidence."""
    dropped: tuple[str, ...] = ()
    """Statements of the version before that the guard misses here, after a second try."""
    restores: str | None = None
    """Id of the version whose text this is, where the cause is a rollback."""
    note: str = ""
    """The owner's own words."""
    id: str = field(default_factory=_new_id)
    """Unique."""
    made_at: str = field(default_factory=_now)
    """When: ISO 8601, UTC."""

    @property
    def by_owner(self) -> bool:
        """Whether its owner made it: it then wins over evidence that came in meanwhile."""
        return self.cause in ("edit", "rollback")


Apply = Callable[[str, Evidence], Awaitable[str]]
"""The posterior and new evidence -> the whole new posterior. What it raises fails or refuses the update."""

Guard = Callable[[str, str], Sequence[str]]
"""The old text and the new one -> statements of the old that the new has dropped."""


class PosteriorMemory(Protocol):
    """Where one posterior's versions and evidence are kept. Nothing in it is ever changed or deleted.

    Inherit from it: the first five methods are to be written, the others follow from them.
    """

    @abstractmethod
    async def lineage(self) -> Lineage:
        """All versions there are now, and which of them led to the head.

        Raises:
            PosteriorError: there is none and no prior to begin with, or a record is damaged.
        """
        ...

    @abstractmethod
    async def append(self, version: Version) -> bool:
        """Add a version under its number.

        Returns:
            False, and nothing is added, where the number is taken: others have added versions since the caller read.
        """
        ...

    @abstractmethod
    async def record(self, evidence: Evidence) -> None:
        """Keep evidence, before anything is made of it; the same id again changes nothing."""
        ...

    @abstractmethod
    async def recorded(self) -> Sequence[Evidence]:
        """All evidence that was ever recorded, applied or not, the oldest first where the memory knows."""
        ...

    @abstractmethod
    def turn(self) -> AbstractAsyncContextManager[None]:
        """Held during an update, so that those in one event loop wait for each other instead of racing."""
        ...

    async def head(self) -> Version:
        """The posterior as it is now."""
        return (await self.lineage()).head

    async def history(self) -> Sequence[Version]:
        """The versions that led to the head, the oldest first, the head last."""
        return tuple((await self.lineage()).chain)

    async def versions(self) -> Sequence[Version]:
        """Every version in the order in which they were added, those that did not lead to the head among them."""
        return tuple((await self.lineage()).versions)

    async def pending(self) -> Sequence[Evidence]:
        """Evidence that the head does not account for: its update failed, was interrupted, or lost to an edit."""
        recorded = await self.recorded()
        lineage = await self.lineage()
        waiting = {one.id: one for one in (*recorded, *lineage.displaced()) if one.id not in lineage.settled}
        return tuple(waiting.values())

    async def get(self, id: str) -> Version:
        """The version of this id, of an id that begins so (4 letters at least), or of this number.

        Raises:
            PosteriorError: there is none, or several.
        """
        versions = await self.versions()
        found = [one for one in versions if one.id == id]
        found = found or [one for one in versions if str(one.number) == id]
        found = found or [one for one in versions if len(id) >= 4 and one.id.startswith(id)]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(f"{one.number} ({one.id})" for one in (found or versions[-8:]))
        raise PosteriorError(
            f"{len(found)} versions are called {id!r}; name one by its id, such as these: {listed}"
            if found
            else f"no version is called {id!r}: expected a number or an id, such as the newest: {listed}"
        )
