"""Measures of exploration: regret, and the two surrogate statistics of LLM-PSRL, appendix A.1.

`n` trials, `K` episodes, `A` actions. Estimates are over trials, each of which has its own hidden instance.

The appendix defines its statistics for a bandit, in which an episode is a single pull. Here they are generalised to
worlds of several steps: an episode is optimal if it has no regret (in a bandit: the optimal arm was pulled), and
actions are counted step by step, up to the end of an episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray
from amc_agents_exploration.comparison.trials import LOST, Trial

_NONE = 1e-9
"""A regret below this threshold is a rounding error."""


class Curve(NamedTuple):
    """A mean over trials for each episode."""

    mean: tuple[float, ...]
    """`[K]`"""
    standard_error: tuple[float, ...] | None
    """`[K]`; None with a single trial."""


def curve(rows: FloatArray) -> Curve:
    """Compute mean and standard error of `[n, K]` numbers. Raises `ConfigurationError` if n = 0."""
    if not len(rows):
        raise ConfigurationError("there is no trial to average over: play some first")
    error = rows.std(axis=0, ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else None
    return Curve(tuple(rows.mean(axis=0).tolist()), None if error is None else tuple(error.tolist()))


def regrets(trials: Sequence[Trial]) -> FloatArray:
    """Return the `[n, K]` regret of each episode."""
    return np.array([trial.regrets for trial in trials], dtype=np.float64)


def suffix_failures(per_episode: FloatArray) -> FloatArray:
    """Find the periods from which on an agent never acts optimally; the mean over trials is the failure frequency.

    The suffix failure at t is 1 if the optimal action is never chosen in the periods t, ..., T, else 0. Many early
    failures mean that the agent would not find the optimum in a longer run either.

    Args:
        per_episode: `[n, K]` regrets.

    Returns:
        `[n, K]` zeros and ones; column t - 1 is period t.

    >>> suffix_failures(np.array([[0.2, 0.0, 0.2, 0.2]])).tolist()
    [[0.0, 0.0, 1.0, 1.0]]
    """
    optimal: npt.NDArray[np.bool_] = per_episode < _NONE
    optimal_later = np.flip(np.logical_or.accumulate(np.flip(optimal, axis=1), axis=1), axis=1)
    failures: FloatArray = (~optimal_later).astype(np.float64)
    return failures


def minimum_frequencies(choices: Sequence[Sequence[int]], n_actions: int) -> FloatArray:
    """Compute the scaled minimum action frequency: 1 if all actions are tried equally often, 0 if one is not tried.

    At t it is A x (count of the least-chosen action in the periods 1, ..., t) / t. A lost turn is a period without an
    action.

    Args:
        choices: `[K]` episodes of `[steps]` numbers of actions.
        n_actions: A.

    Returns:
        `[K]` frequencies after each episode.

    >>> minimum_frequencies([[0], [1], [0], [0]], 2).tolist()
    [0.0, 1.0, 0.6666666666666666, 0.5]
    """
    counts = np.array([[list(episode).count(action) for action in range(n_actions)] for episode in choices])
    periods = np.cumsum([len(episode) for episode in choices])
    least: FloatArray = n_actions * np.cumsum(counts, axis=0).min(axis=1) / np.maximum(periods, 1)
    return least


def lost_turns(trial: Trial) -> float:
    """Return the share of a trial's steps whose action the world does not know."""
    steps = [number for episode in trial.choices for number in episode]
    return steps.count(LOST) / len(steps)
