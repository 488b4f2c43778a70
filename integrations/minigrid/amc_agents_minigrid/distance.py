"""How many steps a mission still needs: exact walks over the room, for missions to go to a thing or to pick it up.

The bot counts too, but begins afresh wherever it is asked and then does not know what it has seen, so that its count
can stay the same along its own way. Here every state but the last has an action that leaves one step less.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from minigrid.core.constants import DIR_TO_VEC
from minigrid.envs.babyai.core.verifier import GoToInstr, PickupInstr
from minigrid.minigrid_env import MiniGridEnv

Cell = tuple[int, int]
Cells = frozenset[Cell]
Pose = tuple[int, int, int]
"""Column, row, direction."""
Walks = dict[Pose, int]
"""Steps from each pose from which the aim can be reached."""

_VECTORS = tuple((int(column), int(row)) for column, row in DIR_TO_VEC)


def walking_steps(level: MiniGridEnv) -> int | None:
    """Steps to the mission's end, obstacles gone round; None where walking does not do, or for other missions.

    A thing that is carried is put down first where hands must be free. Where an obstacle could be taken out of the
    way, this is an upper bound.
    """
    mission = getattr(level, "instrs", None)
    if not isinstance(mission, GoToInstr | PickupInstr):
        return None
    wanted = frozenset(_cell(thing.cur_pos) for thing in mission.desc.obj_set if thing is not level.carrying)
    pose = (*_cell(level.agent_pos), int(level.agent_dir))
    free = _free(level)
    if isinstance(mission, GoToInstr):
        carried = level.carrying is not None and any(thing is level.carrying for thing in mission.desc.obj_set)
        # What is carried is gone to by putting it down.
        aims = [_walks(free, wanted), *([_to_put_down(free, _empty(level))] if carried else [])]
        return min((aim[pose] for aim in aims if pose in aim), default=None)
    if level.carrying is None:
        steps = _walks(free, wanted).get(pose)
        return None if steps is None else steps + 1
    return _put_down_first(pose, free, _empty(level), wanted)


def _put_down_first(pose: Pose, free: Cells, empty: Cells, wanted: Cells) -> int | None:
    """Walk to where there is room, put down, then walk to the wanted thing and pick it up."""
    bound = _walks(free, wanted)
    best: int | None = None
    for there, steps in sorted(_walk_from(pose, free).items(), key=lambda found: found[1]):
        # The thing that is put down can only be in the way.
        least = bound.get(there)
        ahead = _ahead(there)
        if ahead not in empty or least is None or (best is not None and steps + least + 2 >= best):
            continue
        left = _walks(free - {ahead}, wanted).get(there)
        if left is not None and (best is None or steps + left + 2 < best):
            best = steps + left + 2
    return best


@lru_cache(maxsize=4096)
def _walks(free: Cells, wanted: Cells) -> Walks:
    """Steps to stand before one of the wanted cells."""
    return _backwards([pose for cell in wanted for pose in _facing(cell, free)], free)


@lru_cache(maxsize=512)
def _to_put_down(free: Cells, empty: Cells) -> Walks:
    """Steps until something is put down, this step included."""
    poses = [(*cell, direction) for cell in free for direction in range(4)]
    walks = _backwards([pose for pose in poses if _ahead(pose) in empty], free)
    return {pose: steps + 1 for pose, steps in walks.items()}


def _backwards(ends: list[Pose], free: Cells) -> Walks:
    found = dict.fromkeys(ends, 0)
    ahead = deque(ends)
    while ahead:
        pose = ahead.popleft()
        column, row, direction = pose
        right, down = _VECTORS[direction]
        before = [(column, row, (direction + 1) % 4), (column, row, (direction - 1) % 4)]
        if (column - right, row - down) in free:
            before.append((column - right, row - down, direction))
        for one in before:
            if one not in found:
                found[one] = found[pose] + 1
                ahead.append(one)
    return found


def _walk_from(pose: Pose, free: Cells) -> Walks:
    found = {pose: 0}
    ahead = deque([pose])
    while ahead:
        here = ahead.popleft()
        column, row, direction = here
        after = [(column, row, (direction + 1) % 4), (column, row, (direction - 1) % 4)]
        if _ahead(here) in free:
            after.append((*_ahead(here), direction))
        for one in after:
            if one not in found:
                found[one] = found[here] + 1
                ahead.append(one)
    return found


def _facing(cell: Cell, free: Cells) -> Iterator[Pose]:
    for direction, (right, down) in enumerate(_VECTORS):
        if (here := (cell[0] - right, cell[1] - down)) in free:
            yield (*here, direction)


def _ahead(pose: Pose) -> Cell:
    right, down = _VECTORS[pose[2]]
    return pose[0] + right, pose[1] + down


def _free(level: MiniGridEnv) -> Cells:
    """Where one can stand."""
    return _cells(level, lambda thing: thing is None or thing.can_overlap())


def _empty(level: MiniGridEnv) -> Cells:
    """Where something can be put down."""
    return _cells(level, lambda thing: thing is None)


def _cells(level: MiniGridEnv, wanted: Any) -> Cells:
    grid = level.grid
    return frozenset((i, j) for i in range(grid.width) for j in range(grid.height) if wanted(grid.get(i, j)))


def _cell(position: Any) -> Cell:
    return int(position[0]), int(position[1])
