"""Changes that a particle made in its world, and conflicts with changes of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amc_agents.errors import WorldError
from amc_agents.quoting import listed

Kind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A changed file of a folder."""

    path: str
    """Path relative to the folder, with forward slashes."""
    kind: Kind
    """The kind of change."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A changed row of a database."""

    table: str
    """Name of the table."""
    key: tuple[Any, ...]
    """Values of the primary key, or the rowid of a table without one."""
    before: tuple[Any, ...] | None
    """Values of all columns before the change; None for an added row."""
    after: tuple[Any, ...] | None
    """Values of all columns after the change; None for a deleted row."""


class Conflict(WorldError):
    """The original has changed since the run began, so a particle's changes cannot be applied to it.

    Args:
        original: path of the folder or database.
        places: the files or rows that both have changed.
    """

    def __init__(self, original: str, places: Sequence[str]) -> None:
        self.original, self.places = original, tuple(places)
        super().__init__(
            f"cannot apply the changes: {original} has changed since the run began, in {listed(places)}. Nothing was "
            "written. Merge by hand with diff(), or run again"
        )


def row_diff(changes: Sequence[RowChange]) -> str:
    """Format changed rows, one line per row: `+` added, `-` deleted, `~` modified."""
    return "".join(f"{_line(change)}\n" for change in changes)


def _line(change: RowChange) -> str:
    if change.before is None:
        return f"+ {change.table} {change.after}"
    if change.after is None:
        return f"- {change.table} {change.before}"
    return f"~ {change.table} {change.before} -> {change.after}"
