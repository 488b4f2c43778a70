"""Lay out the family tree of a run's particles: one line per particle between two resampling points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Point(Protocol):
    """A weighing point, as `WeighingPoint` records it."""

    @property
    def step(self) -> int:
        """Number of steps of the live particles."""
        ...

    @property
    def values(self) -> Any:
        """`[N]` values."""
        ...

    @property
    def ancestors(self) -> Any:
        """`[N]` the slot that each slot continues, or None where nothing was resampled."""
        ...

    @property
    def retired(self) -> Sequence[int]:
        """Slots whose finished particle was retired."""
        ...


@dataclass(frozen=True)
class Branch:
    """One particle between two resampling points."""

    row: int
    """Vertical position; rows are ordered so that no two lines cross."""
    start: float
    end: float
    """In steps; the last step of a finished particle."""
    from_row: int | None
    """Row of the ancestor; None at the start of the run."""
    value_before: float | None
    value: float
    """The critic's value at the end of the branch, or the return of a finished particle."""
    ending: str
    """The end of the branch: "continued", "dropped", "success" or "failure"."""
    slot: int = 0
    """The particle's slot."""
    point: int | None = None
    """Index of the weighing point at which the branch ended; None: it reached the end of the run."""
    trajectory: int | None = None
    """Index of the particle in the final population; None for branches that were continued or dropped."""


def branches(
    history: Sequence[Point],
    lengths: Sequence[int],
    returns: Sequence[float],
    values: Sequence[float],
    *,
    success: float = 1.0,
) -> list[Branch]:
    """Lay out the branches of a run with a single round of particles.

    Args:
        history: the weighing points.
        lengths: `[M]` number of steps of the final trajectories: the live slots, then the retired particles.
        returns: `[M]` their returns.
        values: `[M]` their final values.
        success: minimum return that counts as a success.
    """

    def ending(trajectory: int) -> str:
        return "success" if returns[trajectory] >= success else "failure"

    n_retired = sum(len(point.retired) for point in history)
    n_start = len(history[0].values) if history else len(lengths)
    retired = iter(range(len(lengths) - n_retired, len(lengths)))
    rows = {slot: slot for slot in range(n_start)}
    from_rows: dict[int, int | None] = dict.fromkeys(range(n_start))
    values_before: dict[int, float | None] = dict.fromkeys(range(n_start))
    start, laid_out = 0.0, []
    for number, point in enumerate(history):
        if point.ancestors is None:
            continue
        ancestors = [int(ancestor) for ancestor in point.ancestors]
        continued = set(ancestors)
        retired_index = {slot: next(retired) for slot in point.retired}
        for slot, row in rows.items():
            before, value = (from_rows[slot], values_before[slot]), float(point.values[slot])
            final = retired_index.get(slot)
            if final is not None:
                branch = Branch(row, start, float(lengths[final]), *before, value, ending(final), slot, number, final)
            else:
                fate = "continued" if slot in continued else "dropped"
                branch = Branch(row, start, float(point.step), *before, value, fate, slot, number)
            laid_out.append(branch)
        order = sorted(range(len(ancestors)), key=lambda slot: (rows[ancestors[slot]], slot))
        from_rows = {slot: rows[ancestors[slot]] for slot in order}
        values_before = {slot: float(point.values[ancestors[slot]]) for slot in order}
        rows = {slot: row for row, slot in enumerate(order)}
        start = float(point.step)
    for slot, row in rows.items():
        before, value = (from_rows[slot], values_before[slot]), float(values[slot])
        laid_out.append(Branch(row, start, float(lengths[slot]), *before, value, ending(slot), slot, None, slot))
    return laid_out


def unrelated(lengths: Sequence[int], returns: Sequence[float], values: Sequence[float]) -> list[Branch]:
    """Lay out final trajectories as separate lines, for runs whose ancestry is not recorded in full."""
    return [
        Branch(i, 0.0, float(length), None, None, value, "success" if return_ >= 1.0 else "failure", i, None, i)
        for i, (length, return_, value) in enumerate(zip(lengths, returns, values, strict=True))
    ]


def has_one_round(steps: Sequence[int], n_retired: int, n_particles: int, n_final: int) -> bool:
    """Return whether the ancestry of the final population is known: no second round, and no cleared particles.

    Args:
        steps: `[P]` step of each weighing point.
        n_retired: number of particles retired at these points.
        n_particles: number of slots at the end.
        n_final: M.
    """
    return list(steps) == sorted(steps) and n_particles + n_retired == n_final


def texts_of(
    laid_out: Sequence[Branch],
    history: Sequence[Point],
    final: Sequence[Any],
    dropped: Sequence[Mapping[int, Any]],
) -> list[Any]:
    """Return, for each branch, a trajectory that contains its steps; None where none was kept.

    Args:
        laid_out: the branches, oldest first.
        history: the weighing points.
        final: `[M]` the final trajectories.
        dropped: `[P]` slot -> trajectory of the particles without offspring, by point.
    """
    resampled = [number for number, point in enumerate(history) if point.ancestors is not None]
    following = dict(zip([None, *resampled], [*resampled, None], strict=True))
    of_slot: dict[tuple[int | None, int], Any] = {}
    for branch in reversed(laid_out):
        if branch.trajectory is not None:
            trajectory = final[branch.trajectory]
        elif branch.ending == "dropped":
            trajectory = dropped[branch.point or 0].get(branch.slot)
        else:
            ancestors = history[branch.point or 0].ancestors
            children = (slot for slot, ancestor in enumerate(ancestors) if int(ancestor) == branch.slot)
            kept = (of_slot[following[branch.point], slot] for slot in children)
            trajectory = next((child for child in kept if child is not None), None)
        of_slot[branch.point, branch.slot] = trajectory
    return [of_slot[branch.point, branch.slot] for branch in laid_out]
