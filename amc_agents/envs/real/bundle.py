"""Several worlds per particle, which are forked and closed together."""

from __future__ import annotations

from typing import Any

from amc_agents.envs.real.changes import Conflict
from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.quoting import quoted
from amc_agents.types import Forkable, Restorable


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
