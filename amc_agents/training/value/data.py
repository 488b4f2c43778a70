"""The rows that a value model's training reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A window of a trajectory as token ids, with a target at every mark: one row of a batch."""

    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """`[S]` index in `ids` at which each of its states is scored."""
    states: tuple[int, ...]
    """`[S]` number t of each state."""
    targets: tuple[float, ...]
    """`[S]` target of each score."""
    final: tuple[bool, ...]
    """`[S]` whether the state is the end of its trajectory, with no return to come."""
    success: bool
    """Whether the whole return of the trajectory counts as a success."""
    rewards: tuple[float, ...]
    """`[S]` reward of the step that leaves each state; 0 at the end of the trajectory."""
    weights: tuple[float, ...]
    """`[S]` weight of each mark in the loss; 1.0 for objectives without weights."""
