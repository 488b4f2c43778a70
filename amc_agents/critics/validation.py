"""Read numbers strictly, and turn failures of a critic into `CriticError`: exceptions and invalid answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from amc_agents.concurrency.gather import was_cancelled
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
    except asyncio.CancelledError as error:
        if was_cancelled():
            raise
        if isinstance(error.__cause__, BudgetExhausted | ConfigurationError):
            raise error.__cause__ from None
        raise CriticError(f"{who} failed: it raised CancelledError, and nobody cancelled the run") from error
    except (CriticError, ConfigurationError, CheckpointError, MissingExtra, DecisionError, BudgetExhausted):
        raise
    except Exception as error:
        detail = excerpt(str(error), _MOST_QUOTED)
        raise CriticError(f"{who} failed: {type(error).__name__}: {detail}") from cause_of(error)


def real_numbers(values: Any) -> FloatArray:
    """Convert real numbers to float64, in any shape.

    NumPy would read the text "0.5" as a number, drop an imaginary part, and ignore a mask.

    Raises:
        ValueError: something else is among them; the message names it.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError("a masked array with masked entries: fill or drop them")
    if getattr(values, "requires_grad", False):
        raise ValueError(f"a {type(values).__name__} with requires_grad: detach it")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            wrong = [type(entry).__name__ for entry in array.flat if not isinstance(entry, Real | Decimal)]
            if wrong:
                raise ValueError(type(values).__name__ + (f" with {wrong[0]}" if array.shape else ""))
        elif array.dtype.kind not in "biuf":
            raise ValueError(f"{type(values).__name__} of {array.dtype.type.__name__.rstrip('_')}")
        return array.astype(np.float64)
    except (TypeError, OverflowError, RuntimeError) as error:  # RuntimeError: of a list of PyTorch's tensors
        raise ValueError(f"{type(values).__name__} ({excerpt(str(error), 100)})") from error


def real_number(value: Any) -> float:
    """Convert a single real number. Raises `ValueError` for anything else, naming it."""
    number = real_numbers(value)
    if number.shape:
        raise ValueError(f"an array of shape {list(number.shape)}")
    return float(number)


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
        array = real_numbers(values)
    except ValueError as error:
        raise CriticError(f"critic {critic} answered {error}, expected [{n}] numbers") from error
    if array.shape != (n,):
        raise CriticError(f"critic {critic} answered values of shape {list(array.shape)}, expected [{n}]")
    if not np.all(np.isfinite(array)):
        wrong = np.flatnonzero(~np.isfinite(array))
        raise CriticError(
            f"critic {critic} answered {array[wrong[0]]} for trajectory {wrong[0]} ({len(wrong)} of {n}), expected "
            "finite numbers: check its model"
        )
    return array
