"""The critic `test-progress`: the share of tests that pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from amc_agents.errors import CriticSpecError
from amc_agents.types import FloatArray, Trajectory

_COUNT = re.compile(r"^(\d+) of (\d+) tests pass\.", re.MULTILINE)


class Progress:
    """Predicts the share of passing tests in the newest report, at first that of the instruction.

    An edit after the newest report is not judged, so resample right after a test run.
    """

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predicted future returns, from 0 to 1."""
        return np.array([share(trajectory) for trajectory in trajectories])


def share(trajectory: Trajectory) -> float:
    """Return the share of passing tests in the newest report; 0 without a report."""
    texts = (*(step.observation for step in reversed(trajectory.steps)), trajectory.task.instruction)
    for text in texts:
        if match := _COUNT.search(text):
            return int(match[1]) / max(int(match[2]), 1)
    return 0.0


def from_spec(target: str, options: Mapping[str, str]) -> Progress:
    """Create the critic of the string `test-progress`.

    Raises:
        CriticSpecError: the string has a target or options.
    """
    if target or options:
        raise CriticSpecError(f"the kind 'test-progress' takes neither target nor options, got {target!r}, {options}")
    return Progress()
