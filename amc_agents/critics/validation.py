"""Checks on a critic's answer: a wrong shape, NaN or infinity is a failure of the instrument."""

from __future__ import annotations

from typing import Any

import numpy as np

from amc_agents.errors import CriticError
from amc_agents.types import FloatArray


def checked_values(values: Any, n: int, critic: str) -> FloatArray:
    """`[N]` the values as float64, or `CriticError` that says what came instead.

    Args:
        values: what the critic answered.
        n: trajectories that it was asked about.
        critic: its name, for the message.
    """
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise CriticError(f"critic {critic} answered {type(values).__name__}, expected [{n}] numbers") from error
    if found.shape != (n,):
        raise CriticError(f"critic {critic} answered values of shape {list(found.shape)}, expected [{n}]")
    if not np.all(np.isfinite(found)):
        wrong = np.flatnonzero(~np.isfinite(found))
        raise CriticError(f"critic {critic} answered {found[wrong[0]]} for trajectory {wrong[0]} ({len(wrong)} of {n})")
    return found
