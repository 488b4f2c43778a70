"""What a policy imitates: the trajectories of a task, with weights that sum to 1 within the task.

The weighted log-likelihood of the agent's turns is highest for the policy whose turns at each state are those of the
weighted trajectories that pass through it. With the weights of AMC's particles, and many of them, this is the tilted
policy: pi's turns, conditioned on the return by exp(R / beta) (tests/test_distill.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from amc_agents.smc import normalised

LEAST = 0.01
"""Trajectories with a smaller share of their task are left out."""
T = TypeVar("T", bound=Hashable)


def shares(trajectories: Sequence[T], log_weights: Sequence[float], least: float = LEAST) -> dict[T, float]:
    """Return each distinct trajectory's share of its task, which sum to 1.

    Args:
        trajectories: the final population of a task.
        log_weights: their absolute log-weights.
        least: smaller shares are left out.
    """
    sums: dict[T, float] = defaultdict(float)
    for trajectory, share in zip(trajectories, normalised(np.array(log_weights)).tolist(), strict=True):
        sums[trajectory] += share
    kept = {trajectory: share for trajectory, share in sums.items() if share >= least}
    return {trajectory: share / sum(kept.values()) for trajectory, share in kept.items()}
