"""What the agent of a MiniGrid level sees, in words: everything relative to where it stands and looks.

The format is that of BabyAI-Text: what is carried, the walls straight to the left, right and ahead, then the things in
view, each with its distance in steps: `You see a wall 2 steps right, You see a red key 3 steps left`.
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
"""Kinds of cells that are not things; walls are told of on their own."""
_STRAIGHT = ((-1, 0), (1, 0), (0, 1))
"""Left, right and ahead, as (steps right, steps forward)."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A thing in view, and where it is from the agent's place and direction."""

    name: str
    """Colour and kind, and how a door stands: `green key`, `locked red door`; or `wall`."""
    right: int
    """Steps to the right; negative to the left."""
    forward: int
    """Steps ahead, never negative."""

    @property
    def place(self) -> str:
        """Where it is: `3 steps left and 1 step forward`."""
        sides = [(abs(self.right), "right" if self.right > 0 else "left"), (self.forward, "forward")]
        return " and ".join(f"{steps} step{'s' if steps > 1 else ''} {side}" for steps, side in sides if steps)

    def __str__(self) -> str:
        return f"You see {article(self.name)} {self.name} {self.place}"


def describe(level: MiniGridEnv) -> str:
    """The observation: what is carried, walls, things."""
    grid, visible = level.gen_obs_grid()
    parts = [f"You carry {article(name)} {name}" for name in carried(level)]
    parts += map(str, (*_walls(grid, visible), *_things(grid, visible)))
    return ", ".join(parts) or NOTHING


def carried(level: MiniGridEnv) -> tuple[str, ...]:
    """The name of what the agent holds; empty where it holds nothing."""
    return () if level.carrying is None else (name_of(level.carrying),)


def things(level: MiniGridEnv) -> list[Sighting]:
    """The things in view, from left to right, near before far."""
    return _things(*level.gen_obs_grid())


def name_of(thing: WorldObj) -> str:
    """Colour and kind, after how it stands in the case of a door."""
    if not isinstance(thing, Door):
        return f"{thing.color} {thing.type}"
    stands = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    return f"{stands} {thing.color} door"


def article(name: str) -> str:
    """`a` or `an`."""
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
    """The walls straight left, right and ahead. A thing in between hides one."""
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
