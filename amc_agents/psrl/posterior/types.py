"""Data of a posterior: evidence, versions, and the functions that write and check a version."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

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
