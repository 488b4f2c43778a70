"""Changes that a particle made in its world, conflicts with changes of the original, and several worlds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.quoting import listed, quoted
from amc_agents.types import Forkable, Restorable

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


class WorldBundle:
    """Several worlds under names, such as `WorldBundle(files=DirectoryFork("repo"), db=SqliteFork("shop.db"))`.

    A tool gets its particle's worlds from `current_environment(WorldBundle)`: `.files`, `.db`. A fork copies all
    of them or, if one fails, none. The bundle is `Restorable` if all of its worlds are.

    Args:
        worlds: the worlds by name.

    Raises:
        ConfigurationError: without a world, or with an object that has no `fork` and `close`.
    """

    def __init__(self, **worlds: Forkable) -> None:
        wrong = [name for name, world in worlds.items() if not isinstance(world, Forkable)]
        if not worlds or wrong:
            raise ConfigurationError(
                f"WorldBundle expects worlds with fork(seed) and close() by name, got {', '.join(wrong) or 'none'}"
            )
        self._worlds: dict[str, Any] = worlds
        if all(isinstance(world, Restorable) for world in worlds.values()):
            # Only now, so that isinstance(bundle, Restorable) is true of these bundles alone.
            self.snapshot, self.restore, self.release = self._snapshot, self._restore, self._release

    def __getattr__(self, name: str) -> Any:
        """Return a world by its name."""
        worlds = self.__dict__.get("_worlds", {})
        if name not in worlds:
            raise AttributeError(f"this WorldBundle has the worlds {', '.join(worlds)}, not {quoted(name)}")
        return worlds[name]

    @property
    def run_note(self) -> str:
        """The notes of the worlds."""
        notes = [getattr(world, "run_note", "") for world in self._worlds.values()]
        return "; ".join(filter(None, notes))

    async def fork(self, seed: int) -> WorldBundle:
        """Fork every world with the same seed. If one fails, close the other copies and raise its error."""
        copies: dict[str, Forkable] = {}
        try:
            for name, world in self._worlds.items():
                copies[name] = await world.fork(seed)
        except BaseException:
            await _close_all(copies)
            raise
        return WorldBundle(**copies)

    async def close(self) -> None:
        """Close every world, then raise the first error."""
        await _close_all(self._worlds)

    def diff(self) -> str:
        """The particle's changes in all worlds that have a `diff`, each after a line with the world's name."""
        diffs = {name: world.diff() for name, world in self._worlds.items() if hasattr(world, "diff")}
        return "".join(f"# {name}\n{diff}" for name, diff in diffs.items() if diff)

    def apply(self) -> dict[str, Any]:
        """Apply the changes of all worlds that have `apply`, in order, and return them by world.

        Before the first world is applied, all are checked for conflicts. Each world is applied atomically, but several
        originals cannot be written in one transaction.

        Raises:
            Conflict: an original has changed since the run began. Nothing was written.
            WorldError: an original rejected the changes. The message names the worlds that were applied before.
        """
        appliable: dict[str, Any] = {name: world for name, world in self._worlds.items() if hasattr(world, "apply")}
        conflicts = [f"{name}: {place}" for name, world in appliable.items() for place in world.conflicts()]
        if conflicts:
            raise Conflict(", ".join(appliable), conflicts)
        applied: dict[str, Any] = {}
        for name, world in appliable.items():
            try:
                applied[name] = world.apply()
            except Exception as error:
                done = ", ".join(applied) or "nothing"
                raise WorldError(f"the changes of {name} were not applied ({error}); applied before: {done}") from error
        return applied

    async def _snapshot(self) -> dict[str, Any]:
        """Save every world. If one fails, release the other snapshots and raise its error."""
        saved: dict[str, Any] = {}
        try:
            for name, world in self._worlds.items():
                saved[name] = await world.snapshot()
        except BaseException:
            await self._release(saved)
            raise
        return saved

    async def _restore(self, snapshot: Any) -> None:
        """Restore every world."""
        if set(snapshot) != set(self._worlds):
            names = [", ".join(each) for each in (snapshot, self._worlds)]
            raise WorldError(f"the snapshot has the worlds {names[0]}, but this WorldBundle has {names[1]}")
        for name, world in self._worlds.items():
            await world.restore(snapshot[name])

    async def _release(self, snapshot: Any) -> None:
        """Delete the snapshots of all worlds."""
        for name, reference in snapshot.items():
            await self._worlds[name].release(reference)


async def _close_all(worlds: dict[str, Forkable]) -> None:
    errors = []
    for world in worlds.values():
        try:
            await world.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
