"""The learning-rate schedule."""

from __future__ import annotations

import math


def warm_up_and_cosine(step: int, steps: int, warm_up: float) -> float:
    """Factor on the peak learning rate at a step: linear warm-up, then cosine decay to 0.

    Args:
        step: number of the step, from 0.
        steps: steps of the whole training.
        warm_up: share of the steps that warm up.

    >>> [round(warm_up_and_cosine(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    n_warm_up = max(1, round(warm_up * steps))
    if step < n_warm_up:
        return (step + 1) / n_warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - n_warm_up) / max(1, steps - n_warm_up)))
