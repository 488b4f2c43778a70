"""The Bayes-optimal policy of the combination lock (LLM-PSRL, section 5.2.1), by dynamic programming.

It has the least expected regret among all adaptive policies, for the uniform prior over 720 codes and a given number of
episodes. The state consists of the knowledge of the code up to the names of the digits (`lock_knowledge`), the place in
the attempt, whether the attempt may still open the lock, and the number of remaining episodes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.exact.lock_knowledge import NOTHING_KNOWN, Knowledge, branches, n_consistent, outcomes
from amc_agents_exploration.worlds import read_entered

_PLACES = 3


def least_regret(n_episodes: int) -> float:
    """Return the expected number of the `n_episodes` in which the Bayes-optimal policy fails to open the lock."""
    return _regret(NOTHING_KNOWN, 0, True, n_episodes)


class BayesOptimalLock:
    """Plays a lock with the least expected regret. The first decision computes all values in a fraction of a second.

    Args:
        n_episodes: planning horizon. Further episodes are each played as the last.
    """

    def __init__(self, n_episodes: int = 8) -> None:
        self._n_left = n_episodes + 1
        self._knowledge = NOTHING_KNOWN
        self._may_open = True

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Begin an episode."""
        self._n_left = max(self._n_left - 1, 1)
        self._may_open = True

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the smallest digit of the best status."""
        known = tuple(sorted(self._knowledge))
        status = _best(known, len(trajectory.steps), self._may_open, self._n_left)
        return Step(str(self._knowledge.index(status)))

    async def observe(self, trajectory: Trajectory) -> None:
        """Update the knowledge by the feedback."""
        entered = read_entered(trajectory.steps[-1].observation)
        assert entered is not None  # The agent enters only digits.
        possible = outcomes(self._knowledge, entered.place, int(entered.symbol))
        self._knowledge = next(outcome.knowledge for outcome in possible if outcome.feedback == entered.feedback)
        self._may_open &= entered.feedback == "right"

    async def end(self, trajectory: Trajectory) -> None:
        """Do nothing: the agent learns after every step."""


@cache
def _regret(known: Knowledge, place: int, may_open: bool, n_left: int) -> float:
    """Return the expected regret of this and the later episodes under the best policy."""
    if place == _PLACES:
        if may_open:
            return 0.0
        return 1.0 + (_regret(known, 0, True, n_left - 1) if n_left > 1 else 0.0)
    if n_consistent(known) == 1:
        return 0.0 if may_open else 1.0
    return min(_regrets(known, place, may_open, n_left).values())


def _regrets(known: Knowledge, place: int, may_open: bool, n_left: int) -> dict[int, float]:
    """Return the expected regret by status of the digit to enter."""
    return {
        status: sum(
            branch.chance * _regret(branch.knowledge, place + 1, may_open and branch.right, n_left)
            for branch in possible
        )
        for status, possible in branches(known, place).items()
    }


@cache
def _best(known: Knowledge, place: int, may_open: bool, n_left: int) -> int:
    regrets = _regrets(known, place, may_open, n_left)
    # Ties go to the highest status, which leaves the most places open or marks a digit that occurs.
    least = min(regrets.values())
    return max(status for status, regret in regrets.items() if regret <= least + 1e-12)
