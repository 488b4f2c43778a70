"""Failures of a critic, under one name: whatever it raises, and an answer of a wrong shape, NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, DecisionError, MissingExtra
from amc_agents.quoting import cause_of, excerpt
from amc_agents.types import FloatArray

MOST_TOLD = 300
"""Characters of another library's error that a message repeats."""


@contextmanager
def failing_as_critic_error(who: str) -> Iterator[None]:
    """Raise whatever `who` raises as a `CriticError`, which `on_critic_error="uniform"` may pass over.

    These go through as they are: a wrong setting (`ConfigurationError`), another model than the checkpoint's
    (`CheckpointError`) and a package that is not installed (`MissingExtra`), which a later call would meet again; and
    an answer in words that could not be read (`DecisionError`).

    Args:
        who: what the message begins with, such as "critic Mine".
    """
    try:
        yield
    except (CriticError, ConfigurationError, CheckpointError, MissingExtra, DecisionError):
        raise
    except Exception as error:
        told = excerpt(str(error), MOST_TOLD)
        raise CriticError(f"{who} failed: {type(error).__name__}: {told}") from cause_of(error)


def checked_values(values: Any, n: int, critic: str) -> FloatArray:
    """`[N]` the values as float64, or `CriticError` that says what came instead.

    Args:
        values: what the critic answered.
        n: trajectories that it was asked about.
        critic: its name, for the message.
    """
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise CriticError(f"critic {critic} answered {type(values).__name__}, expected [{n}] numbers") from error
    if found.shape != (n,):
        raise CriticError(f"critic {critic} answered values of shape {list(found.shape)}, expected [{n}]")
    if not np.all(np.isfinite(found)):
        wrong = np.flatnonzero(~np.isfinite(found))
        raise CriticError(f"critic {critic} answered {found[wrong[0]]} for trajectory {wrong[0]} ({len(wrong)} of {n})")
    return found
