"""Several worlds per particle, which are forked and closed together."""

from __future__ import annotations

from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.types import Forkable


class WorldBundle:
    """Several worlds under names, such as `WorldBundle(files=DirectoryFork("repo"), db=SqliteFork("shop.db"))`.

    A tool gets its particle's worlds from `current_environment(WorldBundle)`: `.files`, `.db`. A fork copies all
    of them or, if one fails, none.

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
        self._worlds = worlds

    def __getattr__(self, name: str) -> Any:
        """Return a world by its name."""
        worlds = self.__dict__.get("_worlds", {})
        if name not in worlds:
            raise AttributeError(f"this WorldBundle has the worlds {', '.join(worlds)}, not {name!r}")
        return worlds[name]

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


async def _close_all(worlds: dict[str, Forkable]) -> None:
    errors = []
    for world in worlds.values():
        try:
            await world.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
