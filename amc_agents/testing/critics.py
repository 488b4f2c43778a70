"""A check of any critic against the contract of `Critic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.spec import parse_critic
from amc_agents.quoting import quoted
from amc_agents.types import Critic, FloatArray, Trajectory

EMPTY_BATCH = "an empty batch gets an array of shape [0]"
SHAPE = "N trajectories get a numeric array of shape [N]"
FINITE = "every value is finite"
REPEATABLE = "the same batch gets the same values again"
ORDER = "a value does not depend on the order of the batch"
COMPANY = "a value does not depend on what else is in the batch"
DUPLICATES = "equal trajectories get equal values"


async def check_critic(critic: CriticLike, trajectories: Sequence[Trajectory], *, tolerance: float = 1e-5) -> None:
    """Check that a critic keeps the contract of `Critic` on some trajectories.

    Args:
        critic: the critic, in any form that `amc` accepts.
        trajectories: at least two different trajectories, preferably of different lengths, and with finished ones if
            the critic will be used without rewards.
        tolerance: maximum difference of two answers to the same question, in reward units. A model rounds differently
            in batches of other shapes. A sampled judge does not pass.

    Raises:
        AssertionError: the critic breaks the contract. The message has the broken sentence and the observation.
        ValueError: fewer than two different trajectories are given.
    """
    critic = parse_critic(critic)
    batch = list(trajectories)
    if len(set(batch)) < 2:
        raise ValueError(f"expected at least two different trajectories, got {len(set(batch))}")
    await _values(critic, [], EMPTY_BATCH)
    values = await _values(critic, batch)
    _require_close(await _values(critic, batch), values, REPEATABLE, tolerance)
    _require_close((await _values(critic, batch[::-1]))[::-1], values, ORDER, tolerance)
    alone = [float((await _values(critic, [trajectory]))[0]) for trajectory in batch]
    _require_close(np.array(alone), values, COMPANY, tolerance)
    twins = [replace(trajectory, steps=tuple(replace(step) for step in trajectory.steps)) for trajectory in batch]
    together = await _values(critic, [*batch, *twins])
    _require_close(together[: len(batch)], values, COMPANY, tolerance)
    _require_close(together[len(batch) :], values, DUPLICATES, tolerance)


async def _values(critic: Critic, trajectories: Sequence[Trajectory], sentence: str = SHAPE) -> FloatArray:
    answer = await critic.values(trajectories)
    numeric = isinstance(answer, np.ndarray) and np.issubdtype(answer.dtype, np.floating)
    seen = f"shape {list(answer.shape)}, {answer.dtype}" if isinstance(answer, np.ndarray) else type(answer).__name__
    if not numeric or answer.shape != (len(trajectories),):
        raise AssertionError(f"{sentence}: for {len(trajectories)} trajectories it gave {seen}")
    if not np.all(np.isfinite(answer)):
        raise AssertionError(f"{FINITE}: it gave {answer.tolist()}")
    return answer


def _require_close(actual: FloatArray, expected: FloatArray, sentence: str, tolerance: float) -> None:
    gaps = np.abs(actual - expected)
    if np.any(gaps > tolerance):
        worst = int(np.argmax(gaps))
        raise AssertionError(
            f"{sentence} (within {tolerance:g}): trajectory {worst} got {quoted(expected[worst])}, then "
            f"{quoted(actual[worst])}"
        )
