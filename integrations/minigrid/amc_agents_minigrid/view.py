"""Describe the view of the agent of a MiniGrid level in words, relative to its position and direction.

The format is that of BabyAI-Text: the carried object, the walls straight to the left, right and ahead, then the visible
objects, each with its distance in steps: `You see a wall 2 steps right, You see a red key 3 steps left`.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.world_object import Door, WorldObj
from minigrid.minigrid_env import MiniGridEnv
from numpy.typing import NDArray

NOTHING = "You see nothing"
_BARE = ("wall", "floor", "empty", "unseen")
"""Cell types that are not objects; walls are described separately."""
_STRAIGHT = ((-1, 0), (1, 0), (0, 1))
"""Left, right and ahead, as (steps right, steps forward)."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A visible object and its position relative to the agent."""

    name: str
    """Colour and type, with the state of a door: `green key`, `locked red door`; or `wall`."""
    right: int
    """Steps to the right; negative to the left."""
    forward: int
    """Steps ahead, never negative."""

    @property
    def place(self) -> str:
        """The position in words: `3 steps left and 1 step forward`."""
        sides = [(abs(self.right), "right" if self.right > 0 else "left"), (self.forward, "forward")]
        return " and ".join(f"{steps} step{'s' if steps > 1 else ''} {side}" for steps, side in sides if steps)

    def __str__(self) -> str:
        return f"You see {article(self.name)} {self.name} {self.place}"


def describe(level: MiniGridEnv) -> str:
    """Format the observation: the carried object, walls, visible objects."""
    grid, visible = level.gen_obs_grid()
    parts = [f"You carry {article(name)} {name}" for name in carried(level)]
    parts += map(str, (*_walls(grid, visible), *_things(grid, visible)))
    return ", ".join(parts) or NOTHING


def carried(level: MiniGridEnv) -> tuple[str, ...]:
    """The name of the carried object; empty if the agent carries none."""
    return () if level.carrying is None else (name_of(level.carrying),)


def things(level: MiniGridEnv) -> list[Sighting]:
    """The visible objects, from left to right, near before far."""
    return _things(*level.gen_obs_grid())


def name_of(thing: WorldObj) -> str:
    """Colour and type, after the state in the case of a door."""
    if not isinstance(thing, Door):
        return f"{thing.color} {thing.type}"
    state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    return f"{state} {thing.color} door"


def article(name: str) -> str:
    """The article `a` or `an` for a name."""
    return "an" if name[0] in "aeiou" else "a"


def _things(grid: Grid, visible: NDArray[np.bool_]) -> list[Sighting]:
    middle, last = grid.width // 2, grid.height - 1
    return [
        Sighting(name_of(cell), column - middle, last - row)
        for column in range(grid.width)
        for row in range(last, -1, -1)
        if (column, row) != (middle, last) and (cell := _seen(grid, visible, column, row)) and cell.type not in _BARE
    ]


def _walls(grid: Grid, visible: NDArray[np.bool_]) -> Iterator[Sighting]:
    """The walls straight left, right and ahead, unless an object hides them."""
    middle, last = grid.width // 2, grid.height - 1
    for right, forward in _STRAIGHT:
        for steps in range(1, (last if forward else middle) + 1):
            cell = _seen(grid, visible, middle + steps * right, last - steps * forward)
            if cell is not None and cell.type == "wall":
                yield Sighting("wall", steps * right, steps * forward)
            if cell is not None and cell.type not in ("floor", "empty"):
                break


def _seen(grid: Grid, visible: NDArray[np.bool_], column: int, row: int) -> WorldObj | None:
    cell: WorldObj | None = grid.get(column, row) if visible[column, row] else None
    return cell
