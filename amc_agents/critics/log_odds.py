"""Log-odds for LAC from critics of other kinds, for trajectories that end with the candidate actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from amc_agents.critics.adapting import connect, name_of
from amc_agents.critics.validation import checked_values
from amc_agents.errors import ConfigurationError, CriticError, UnreadableAnswer
from amc_agents.types import ActionCritic, FloatArray, Step, Trajectory

MARGIN = 1e-3
"""Distance that a probability made from a value keeps from 0 and 1, since a regression is no more certain (|Q| < 7)."""


@runtime_checkable
class LogOdds(Protocol):
    """Judges candidate actions by the trajectories that end with them: the critic that LAC calls."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` Q = log p(GOOD) - log p(BAD) of each trajectory, in one batch."""
        ...


class Judgements(NamedTuple):
    """Q of trajectories, and the probabilities behind it."""

    q: FloatArray
    """`[N]` log-odds."""
    flagged: npt.NDArray[np.bool_]
    """`[N]` True where Q is a bound or a substitute."""
    p_good: FloatArray | None = None
    """`[N]` probability of the word for success; None: the critic reads no words."""
    p_bad: FloatArray | None = None
    """`[N]` probability of the word for failure; other words have the rest."""


@runtime_checkable
class ExplainedLogOdds(LogOdds, Protocol):
    """A critic that also returns the probabilities behind its log-odds, and flags unreliable ones."""

    async def judgements(self, trajectories: Sequence[Trajectory]) -> Judgements:
        """Return `[N]` judgements, in one batch."""
        ...


class NoOdds:
    """Q = 0: all actions are equally good."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` zeros."""
        return np.zeros(len(trajectories))


class OddsOfValue:
    """Q = logit p, where p is the position of the whole return between failure (0) and success (1).

    Args:
        critic: gives values in reward units; its `predicts` determines which return they predict.
        returns: the returns of failure and success.

    Raises:
        ConfigurationError: `returns` are not in order, or the critic is an eq. 5 model. If only its server can tell,
            `connect` and `log_odds` raise the error.
    """

    def __init__(self, critic: Any, returns: tuple[float, float]) -> None:
        low, high = returns
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(
                f"returns must be those of failure and success, in order, got {low:g} and {high:g}"
            )
        self._critic, self._low, self._high = critic, low, high
        try:
            self._refuse_soft_values()
        except CriticError:  # not connected to its server yet
            pass

    async def connect(self) -> None:
        """Connect the critic to its server, if it has one. Raises `ConfigurationError` for an eq. 5 model."""
        await connect(self._critic)
        self._refuse_soft_values()

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` Q.

        Raises:
            UnreadableAnswer: some answers of a judge could not be read; it has the Q of the others.
        """
        unread = None
        try:
            answer = await self._critic.values(trajectories)
            values = checked_values(answer, len(trajectories), name_of(self._critic))
        except UnreadableAnswer as error:
            values, unread = error.values, error
        self._refuse_soft_values()
        if getattr(self._critic, "predicts", "future") == "future":
            # A finished trajectory has no future return, and a model of the future is not trained on final states.
            future = np.where([trajectory.done for trajectory in trajectories], 0.0, values)
            values = future + np.array([trajectory.return_ for trajectory in trajectories])
        p = np.clip((values - self._low) / (self._high - self._low), MARGIN, 1 - MARGIN)
        odds: FloatArray = np.log(p) - np.log1p(-p)
        if unread is not None:
            raise UnreadableAnswer(odds, unread.reason)
        return odds

    def _refuse_soft_values(self) -> None:
        if getattr(self._critic, "beta", None) is not None:
            raise ConfigurationError(
                "lac needs the expected return, and the values of this model, trained by eq. 5, are beta x "
                "log-mean-exp: train a model by eq. 7"
            )


class OddsOfLastAction:
    """Q(s, a) of the last action of each trajectory, from an `ActionCritic`; one batch per common past."""

    def __init__(self, critic: ActionCritic) -> None:
        self._critic = critic

    async def connect(self) -> None:
        """Connect the critic to its server, if it has one."""
        await connect(self._critic)

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` Q."""
        odds = np.zeros(len(trajectories))
        for rows in _by_past(trajectories):
            first = trajectories[rows[0]]
            past = first.prefix(len(first.steps) - 1)
            actions = [trajectories[row].steps[-1].action for row in rows]
            answer = await self._critic.q_values(past, actions)
            odds[rows] = checked_values(answer, len(rows), name_of(self._critic))
        return odds


def _by_past(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """Group the trajectories, by index, that share all but their last step."""
    rows: dict[tuple[int, tuple[Step, ...]], list[int]] = {}
    for row, trajectory in enumerate(trajectories):
        if not trajectory.steps:
            raise CriticError(f"trajectory {row} has no step, so it has no action to judge")
        # The task's id is the key, since a task's payload need not be hashable.
        rows.setdefault((id(trajectory.task), trajectory.steps[:-1]), []).append(row)
    return list(rows.values())
