"""The contract of `Critic`, as a check to run on any implementation of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.spec import parse_critic
from amc_agents.types import Critic, FloatArray, Trajectory

EMPTY_BATCH = "an empty batch gets an array of shape [0]"
SHAPE = "N trajectories get a numeric array of shape [N]"
FINITE = "every value is finite"
REPEATABLE = "the same batch gets the same values again"
ORDER = "a value does not depend on the order of the batch"
COMPANY = "a value does not depend on what else is in the batch"
DUPLICATES = "equal trajectories get equal values"


async def check_critic(critic: CriticLike, trajectories: Sequence[Trajectory], *, tolerance: float = 1e-5) -> None:
    """Prove that a critic keeps the contract of `Critic`, as far as some trajectories can show it.

    Args:
        critic: what is checked, as `amc` takes it.
        trajectories: at least two that differ, best of different lengths; finished ones among them where the critic
            is to be used without rewards.
        tolerance: how far two answers to the same question may be apart, in reward units. A model that is computed
            in batches of other shapes rounds differently; a judge that is sampled does not pass.

    Raises:
        AssertionError: with the sentence of the contract that is broken, and what was seen.
        ValueError: for fewer than two different trajectories.
    """
    critic = parse_critic(critic)
    given = list(trajectories)
    if len(set(given)) < 2:
        raise ValueError(f"expected at least two different trajectories, got {len(set(given))}")
    await _values(critic, [], EMPTY_BATCH)
    values = await _values(critic, given)
    _require_close(await _values(critic, given), values, REPEATABLE, tolerance)
    _require_close((await _values(critic, given[::-1]))[::-1], values, ORDER, tolerance)
    alone = [float((await _values(critic, [one]))[0]) for one in given]
    _require_close(np.array(alone), values, COMPANY, tolerance)
    twins = [replace(one, steps=tuple(replace(step) for step in one.steps)) for one in given]
    together = await _values(critic, [*given, *twins])
    _require_close(together[: len(given)], values, COMPANY, tolerance)
    _require_close(together[len(given) :], values, DUPLICATES, tolerance)


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
            f"{sentence} (within {tolerance:g}): trajectory {worst} got {expected[worst]!r}, then {actual[worst]!r}"
        )
