"""Turn failures of a critic into `CriticError`: exceptions, answers of a wrong shape, NaN and infinity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from amc_agents.errors import (
    BudgetExhausted,
    CheckpointError,
    ConfigurationError,
    CriticError,
    DecisionError,
    MissingExtra,
)
from amc_agents.quoting import cause_of, excerpt
from amc_agents.types import FloatArray

_MOST_QUOTED = 300
"""Characters of another library's error that a message repeats."""


@contextmanager
def failing_as_critic_error(who: str) -> Iterator[None]:
    """Raise any exception of the block as a `CriticError`, which `on_critic_error="uniform"` may ignore.

    These exceptions pass unchanged: a wrong setting (`ConfigurationError`), a model other than the checkpoint's
    (`CheckpointError`) and a missing package (`MissingExtra`), because a later call would fail in the same way; and an
    answer in words that cannot be read (`DecisionError`).

    Args:
        who: the beginning of the message, such as "critic Mine".
    """
    try:
        yield
    except (CriticError, ConfigurationError, CheckpointError, MissingExtra, DecisionError, BudgetExhausted):
        raise
    except Exception as error:
        detail = excerpt(str(error), _MOST_QUOTED)
        raise CriticError(f"{who} failed: {type(error).__name__}: {detail}") from cause_of(error)


def checked_values(values: Any, n: int, critic: str) -> FloatArray:
    """Convert a critic's answer to float64, `[N]`.

    Args:
        values: the critic's answer.
        n: number of trajectories (or actions, or goals) that the critic was called with.
        critic: its name, for the message.

    Raises:
        CriticError: the answer is not `[N]` finite numbers.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise CriticError(f"critic {critic} answered {type(values).__name__}, expected [{n}] numbers") from error
    if array.shape != (n,):
        raise CriticError(f"critic {critic} answered values of shape {list(array.shape)}, expected [{n}]")
    if not np.all(np.isfinite(array)):
        wrong = np.flatnonzero(~np.isfinite(array))
        raise CriticError(
            f"critic {critic} answered {array[wrong[0]]} for trajectory {wrong[0]} ({len(wrong)} of {n}), expected "
            "finite numbers: check its model"
        )
    return array
