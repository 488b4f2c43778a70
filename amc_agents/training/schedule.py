"""The learning rate's course."""

from __future__ import annotations

import math


def warm_up_and_cosine(step: int, steps: int, warm_up: float) -> float:
    """Share of the highest learning rate at a step: a straight rise, then a fall to 0 as a half cosine.

    Args:
        step: counted from 0.
        steps: of the whole training.
        warm_up: share of the steps in which it rises.

    >>> [round(warm_up_and_cosine(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rising = max(1, round(warm_up * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
