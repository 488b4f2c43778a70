"""Number of steps that a mission needs, by exact shortest paths, for missions to go to an object or to pick it up.

The bot's own count is not exact: it starts without memory of what it has seen, so that its count can stay constant
along its own path. With shortest paths, every state but the last has an action that reduces the count by one.
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
"""Number of steps from each pose from which the target can be reached."""

_VECTORS = tuple((int(column), int(row)) for column, row in DIR_TO_VEC)


def walking_steps(level: MiniGridEnv) -> int | None:
    """Number of steps that the mission needs, around obstacles; None if walking does not suffice or is not the mission.

    A carried object is put down first if the mission needs free hands. If an obstacle could be removed, the result is
    an upper bound.
    """
    mission = getattr(level, "instrs", None)
    if not isinstance(mission, GoToInstr | PickupInstr):
        return None
    wanted = frozenset(_cell(thing.cur_pos) for thing in mission.desc.obj_set if thing is not level.carrying)
    pose = (*_cell(level.agent_pos), int(level.agent_dir))
    free = _free(level)
    if isinstance(mission, GoToInstr):
        carried = level.carrying is not None and any(thing is level.carrying for thing in mission.desc.obj_set)
        # The agent goes to a carried object by putting it down.
        aims = [_walks(free, wanted), *([_to_put_down(free, _empty(level))] if carried else [])]
        return min((aim[pose] for aim in aims if pose in aim), default=None)
    if level.carrying is None:
        steps = _walks(free, wanted).get(pose)
        return None if steps is None else steps + 1
    return _put_down_first(pose, free, _empty(level), wanted)


def _put_down_first(pose: Pose, free: Cells, empty: Cells, wanted: Cells) -> int | None:
    """Walk to an empty cell, put the object down, then walk to the target and pick it up."""
    bound = _walks(free, wanted)
    best: int | None = None
    for there, steps in sorted(_walk_from(pose, free).items(), key=lambda walk: walk[1]):
        # The object that is put down can only block the path.
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
    """Number of steps to face one of the wanted cells."""
    return _backwards([pose for cell in wanted for pose in _facing(cell, free)], free)


@lru_cache(maxsize=512)
def _to_put_down(free: Cells, empty: Cells) -> Walks:
    """Number of steps to put an object down, the last step included."""
    poses = [(*cell, direction) for cell in free for direction in range(4)]
    walks = _backwards([pose for pose in poses if _ahead(pose) in empty], free)
    return {pose: steps + 1 for pose, steps in walks.items()}


def _backwards(ends: list[Pose], free: Cells) -> Walks:
    walks = dict.fromkeys(ends, 0)
    ahead = deque(ends)
    while ahead:
        pose = ahead.popleft()
        column, row, direction = pose
        right, down = _VECTORS[direction]
        before = [(column, row, (direction + 1) % 4), (column, row, (direction - 1) % 4)]
        if (column - right, row - down) in free:
            before.append((column - right, row - down, direction))
        for earlier in before:
            if earlier not in walks:
                walks[earlier] = walks[pose] + 1
                ahead.append(earlier)
    return walks


def _walk_from(pose: Pose, free: Cells) -> Walks:
    walks = {pose: 0}
    ahead = deque([pose])
    while ahead:
        here = ahead.popleft()
        column, row, direction = here
        after = [(column, row, (direction + 1) % 4), (column, row, (direction - 1) % 4)]
        if _ahead(here) in free:
            after.append((*_ahead(here), direction))
        for later in after:
            if later not in walks:
                walks[later] = walks[here] + 1
                ahead.append(later)
    return walks


def _facing(cell: Cell, free: Cells) -> Iterator[Pose]:
    for direction, (right, down) in enumerate(_VECTORS):
        if (here := (cell[0] - right, cell[1] - down)) in free:
            yield (*here, direction)


def _ahead(pose: Pose) -> Cell:
    right, down = _VECTORS[pose[2]]
    return pose[0] + right, pose[1] + down


def _free(level: MiniGridEnv) -> Cells:
    """Cells in which the agent can stand."""
    return _cells(level, lambda thing: thing is None or thing.can_overlap())


def _empty(level: MiniGridEnv) -> Cells:
    """Cells in which an object can be put down."""
    return _cells(level, lambda thing: thing is None)


def _cells(level: MiniGridEnv, wanted: Any) -> Cells:
    grid = level.grid
    return frozenset((i, j) for i in range(grid.width) for j in range(grid.height) if wanted(grid.get(i, j)))


def _cell(position: Any) -> Cell:
    return int(position[0]), int(position[1])
