"""Labels of candidates from what comes of them: each is carried out in a fork of the world, and played on from there.

For worlds that fork and have no expert. It knows what an action is worth to the policy as it is, thought included; its
price is n whole continuations per candidate.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from amc_agents.training.verdict.data import Option
from amc_agents.training.verdict.labels import Label
from amc_agents.types import Environment, FloatArray, Step, Trajectory

PlayOn = Callable[[Environment, Trajectory, int], Awaitable[Trajectory]]
"""(world, trajectory so far, seed) -> the trajectory played to its end by the policy, in that world."""


async def label_by_continuations(
    world: Environment,
    state: Trajectory,
    options: Sequence[Option],
    play_on: PlayOn,
    *,
    n: int = 8,
    success: float = 1.0,
    errors: float = 2.0,
    seed: int = 0,
) -> list[Option]:
    """The candidates of a state with labels from `n` continuations each.

    GOOD is what succeeds more often than the candidates do on average, BAD what does less often, UNKNOWN what differs
    by less than `errors` standard errors. Continuation i of each has the same seed, so that luck is shared.

    Args:
        world: stands at `state`; it is forked, and stays as it is.
        state: what has happened so far.
        options: `[C]` candidates.
        play_on: plays a trajectory to its end.
        n: continuations of each.
        success: the least return that counts as a success.
        errors: how many standard errors make a difference.
        seed: of forks and continuations.
    """
    shares = np.array([await _share(world, state, one.step, play_on, n, success, seed) for one in options])
    return [replace(one, label=label) for one, label in zip(options, _labels(shares, n, errors), strict=True)]


async def _share(
    world: Environment, state: Trajectory, step: Step, play_on: PlayOn, n: int, success: float, seed: int
) -> float:
    successes = 0
    for number in range(seed, seed + n):
        fork = await world.fork(number)
        try:
            answer = await fork.step(step.action)
            made = replace(step, observation=answer.observation, reward=answer.reward)
            trajectory = state.extended(made, done=answer.done, truncated=answer.truncated)
            whole = trajectory if answer.done else await play_on(fork, trajectory, number)
        finally:
            await fork.close()
        successes += whole.return_ >= success
    return successes / n


def _labels(shares: FloatArray, n: int, errors: float) -> list[Label]:
    """GOOD, BAD or UNKNOWN by each candidate's distance from the mean share.

    The standard error is that of (successes + 1) / (n + 2), so that n equal outcomes are not taken for certainty.
    """
    mean = shares.mean()
    labels: list[Label] = []
    for share in shares:
        smoothed = (share * n + 1) / (n + 2)
        error = math.sqrt(smoothed * (1 - smoothed) / (n + 2))
        labels.append("UNKNOWN" if abs(share - mean) < errors * error else "GOOD" if share > mean else "BAD")
    return labels
