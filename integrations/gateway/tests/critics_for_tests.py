"""Critics by the length of the last action, and of conversations."""

from __future__ import annotations

from typing import Any

from amc_agents.usage import Usage, record


def long(trajectories: Any) -> list[float]:
    """The longer the last action, the better. Reports 7 tokens for each trajectory."""
    if trajectories:
        record("critic", Usage(1, 7 * len(trajectories)), "length")
    return [min(1.0, len(trajectory.steps[-1].action) / 100) for trajectory in trajectories]


def short(trajectories: Any) -> list[float]:
    """The shorter the last action, the better."""
    return [1.0 - value for value in long(trajectories)]


def broken(trajectories: Any) -> list[float]:
    """Fails for every trajectory."""
    if trajectories:
        raise RuntimeError("the secret address http://10.0.0.1 is down")
    return []
