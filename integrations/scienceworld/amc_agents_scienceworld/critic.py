"""The critic `scienceworld-progress`: the score so far, discounted by refused actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from amc_agents.errors import CriticSpecError
from amc_agents.types import FloatArray, Trajectory

REFUSALS = ("No known action matches", "Ambiguous request")
"""Beginnings of the observations of actions that the engine could not execute."""
WINDOW = 4
"""Number of newest steps in which refusals count."""


class Progress:
    """Predicts that a trajectory earns once more what it has earned, times the share of its newest steps not refused.

    It reads observed rewards and observations only, and is not trained.
    """

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predicted future returns, from 0 to 1."""
        return np.array([_value(trajectory) for trajectory in trajectories])


def _value(trajectory: Trajectory) -> float:
    newest = trajectory.steps[-WINDOW:]
    refused = sum(step.observation.startswith(REFUSALS) for step in newest) / max(len(newest), 1)
    return max(trajectory.return_, 0.0) * (1.0 - refused)


def from_spec(target: str, options: Mapping[str, str]) -> Progress:
    """Create the critic of the string `scienceworld-progress`.

    Raises:
        CriticSpecError: the string has a target or options.
    """
    if target or options:
        raise CriticSpecError(f"scienceworld-progress takes neither target nor options, got {target!r}, {options}")
    return Progress()
