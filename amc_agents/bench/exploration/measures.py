"""How well an agent explores: regret, and the two surrogate statistics of LLM-PSRL, appendix A.1.

`n` trials, `K` episodes, `A` actions. Estimates are over trials, each of which has a hidden instance of its own.

The appendix states its statistics for a bandit, where an episode is a single pull. For worlds of several steps this
is how they are read here: an episode counts as optimal where it has no regret (on a bandit: the optimal arm was
pulled), and actions are counted step by step, up to an episode's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.bench.exploration.trials import LOST, Trial
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray

_NONE = 1e-9
"""A regret below this is a rounding error."""


class Curve(NamedTuple):
    """A mean over trials, by episode."""

    mean: tuple[float, ...]
    """`[K]`"""
    standard_error: tuple[float, ...] | None
    """`[K]`; None with a single trial, of which no spread is known."""


def curve(rows: FloatArray) -> Curve:
    """Mean and standard error of `[n, K]` numbers. Raises `ConfigurationError` for no trial."""
    if not len(rows):
        raise ConfigurationError("a mean over no trial was asked for: play some first")
    error = rows.std(axis=0, ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else None
    return Curve(tuple(rows.mean(axis=0).tolist()), None if error is None else tuple(error.tolist()))


def regrets(trials: Sequence[Trial]) -> FloatArray:
    """`[n, K]` regret of each episode."""
    return np.array([trial.regrets for trial in trials], dtype=np.float64)


def suffix_failures(per_episode: FloatArray) -> FloatArray:
    """Whether an agent has stopped to do what is best: its mean over trials is the suffix failure frequency.

    A suffix failure at t is 1 where the optimal action is never chosen in the periods t, ..., T, else 0. Many of them
    early on tell of an agent that would not find the optimum in a longer run either.

    Args:
        per_episode: `[n, K]` regrets.

    Returns:
        `[n, K]` of 0 and 1; column t - 1 is period t.

    >>> suffix_failures(np.array([[0.2, 0.0, 0.2, 0.2]])).tolist()
    [[0.0, 0.0, 1.0, 1.0]]
    """
    optimal: npt.NDArray[np.bool_] = per_episode < _NONE
    once_more = np.flip(np.logical_or.accumulate(np.flip(optimal, axis=1), axis=1), axis=1)
    failures: FloatArray = (~once_more).astype(np.float64)
    return failures


def minimum_frequencies(choices: Sequence[Sequence[int]], n_actions: int) -> FloatArray:
    """The scaled minimum action frequency: near 1 while all actions are tried alike, near 0 once one is given up.

    At t it is A x (times that the least-chosen action was chosen in the periods 1, ..., t) / t. A lost turn is a
    period without an action.

    Args:
        choices: `[K]` episodes of `[steps]` numbers of actions.
        n_actions: A.

    Returns:
        `[K]`, after each episode.

    >>> minimum_frequencies([[0], [1], [0], [0]], 2).tolist()
    [0.0, 1.0, 0.6666666666666666, 0.5]
    """
    counts = np.array([[list(episode).count(action) for action in range(n_actions)] for episode in choices])
    periods = np.cumsum([len(episode) for episode in choices])
    least: FloatArray = n_actions * np.cumsum(counts, axis=0).min(axis=1) / np.maximum(periods, 1)
    return least


def lost_turns(trial: Trial) -> float:
    """The share of a trial's steps whose action was none of the world's."""
    steps = [number for episode in trial.choices for number in episode]
    return steps.count(LOST) / len(steps)
