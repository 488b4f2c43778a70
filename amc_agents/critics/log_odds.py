"""Critics of other kinds as LAC asks for them: log-odds of the trajectories that end with the candidate actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from amc_agents.critics.adapting import connect, name_of
from amc_agents.critics.validation import checked_values
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.types import ActionCritic, FloatArray, Step, Trajectory

MARGIN = 1e-3
"""How near to 0 and 1 a probability made of a value may come: a regression is not surer than that (|Q| < 7)."""


@runtime_checkable
class LogOdds(Protocol):
    """Judges candidate actions by the trajectories that end with them: what LAC asks."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[K]` Q: log p(GOOD) - log p(BAD) of each trajectory, in one batch."""
        ...


class Judgements(NamedTuple):
    """Q of trajectories, and what it was made of."""

    q: FloatArray
    """`[N]` log-odds."""
    flagged: npt.NDArray[np.bool_]
    """`[N]` True where it is a bound or a stand-in."""
    p_good: FloatArray | None = None
    """`[N]` probability of the word for success; None: no words were read."""
    p_bad: FloatArray | None = None
    """`[N]` probability of the word for failure; what both lack of 1, other words have."""


@runtime_checkable
class ExplainedLogOdds(LogOdds, Protocol):
    """A critic that also says what its log-odds were made of, and which are not to be trusted."""

    async def judgements(self, trajectories: Sequence[Trajectory]) -> Judgements:
        """`[N]` judgements, in one batch."""
        ...


class NoOdds:
    """Q = 0: every action is as good as any other."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[K]` Q of each."""
        return np.zeros(len(trajectories))


class OddsOfValue:
    """Q = logit p, p being where the whole return lies between failure and success.

    Args:
        critic: gives values in reward units; `predicts` says of what, and one of an eq. 5 model is refused.
        returns: the returns of failure and success.
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
        except CriticError:  # its server has not been asked yet
            pass

    async def connect(self) -> None:
        """Find the server, where there is one. Raises `ConfigurationError` for an eq. 5 model."""
        await connect(self._critic)
        self._refuse_soft_values()

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[K]` Q of each."""
        answer = await self._critic.values(trajectories)
        values = checked_values(answer, len(trajectories), name_of(self._critic))
        self._refuse_soft_values()
        if getattr(self._critic, "predicts", "future") == "future":
            # Nothing is still to come where a trajectory is over, and no such model has learnt to say so.
            ahead = np.where([trajectory.done for trajectory in trajectories], 0.0, values)
            values = ahead + np.array([trajectory.return_ for trajectory in trajectories])
        p = np.clip((values - self._low) / (self._high - self._low), MARGIN, 1 - MARGIN)
        odds: FloatArray = np.log(p) - np.log1p(-p)
        return odds

    def _refuse_soft_values(self) -> None:
        if getattr(self._critic, "beta", None) is not None:
            raise ConfigurationError(
                "lac needs the expected return, and the values of this model, trained by eq. 5, are beta x "
                "log-mean-exp: train one by eq. 7"
            )


class OddsOfLastAction:
    """Q(s, a) of the last action of each trajectory, one batch for those that share their past."""

    def __init__(self, critic: ActionCritic) -> None:
        self._critic = critic

    async def connect(self) -> None:
        """Find the server, where there is one."""
        await connect(self._critic)

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[K]` Q of each."""
        odds = np.zeros(len(trajectories))
        for rows in _by_past(trajectories):
            first = trajectories[rows[0]]
            past = first.prefix(len(first.steps) - 1)
            actions = [trajectories[row].steps[-1].action for row in rows]
            answer = await self._critic.q_values(past, actions)
            odds[rows] = checked_values(answer, len(rows), name_of(self._critic))
        return odds


def _by_past(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """Rows of the trajectories that share all but their last step."""
    rows: dict[tuple[int, tuple[Step, ...]], list[int]] = {}
    for row, trajectory in enumerate(trajectories):
        if not trajectory.steps:
            raise CriticError(f"trajectory {row} has no step, so no action of it can be judged")
        # By the task's identity: what a world keeps in it need not be hashable.
        rows.setdefault((id(trajectory.task), trajectory.steps[:-1]), []).append(row)
    return list(rows.values())
