"""The exact model of hidden sequences (a lock's code, a Wordle word): uniform over the consistent sequences."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from amc_agents.psrl.posterior.priors import UniformOver
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.exact.bandits import entropy
from amc_agents_exploration.exact.model import Policy, Stakes
from amc_agents_exploration.worlds import CODES, Wordle, feedback_on, read_entered


class ConsistentSequences:
    """Model with a uniform prior over all codes of three different digits, or over the words of a list."""

    def prior(self, task: Task) -> UniformOver:
        """Return the uniform prior over all codes, or over the words of Wordle's list."""
        return _codes() if not isinstance(task.payload, Wordle) else _words(task.payload.words)

    def updated(self, posterior: UniformOver, step: Step) -> UniformOver:
        """Keep the sequences that explain the feedback."""
        entered = read_entered(step.observation)
        if entered is None:
            return posterior
        place, symbol, feedback = entered
        return posterior.given(lambda answer: feedback_on(symbol, place, answer) == feedback)

    def policy(self, task: Task, hypothesis: str) -> Policy:
        """Enter the hypothesis."""
        return lambda trajectory: hypothesis[len(trajectory.steps)]

    def stakes(self, posterior: UniformOver, trajectory: Trajectory) -> Stakes:
        """A wrong symbol has regret 1 while all symbols so far were right, and 0 afterwards.

        The feedback is a function of the answer, so its information about the answer is its entropy.
        """
        actions = trajectory.task.payload.actions
        place, n_left = len(trajectory.steps), len(posterior.items)
        letters = np.array([list(answer) for answer in posterior.items])
        at_place = letters[:, place, None] == np.array(actions)
        right = at_place.sum(axis=0) / n_left
        occurs = (letters[:, :, None] == np.array(actions)).any(axis=1).sum(axis=0) / n_left
        gains = np.array([entropy(np.array([p, q - p, 1 - q])) for p, q in zip(right, occurs, strict=True)])
        return Stakes(actions, 1.0 - right if _all_right(trajectory) else np.zeros(len(actions)), gains)


def _all_right(trajectory: Trajectory) -> bool:
    entered = [read_entered(step.observation) for step in trajectory.steps]
    return all(symbol is not None and symbol.feedback == "right" for symbol in entered)


@lru_cache(maxsize=1)
def _codes() -> UniformOver:
    return UniformOver(CODES)


@lru_cache(maxsize=4)
def _words(words: tuple[str, ...]) -> UniformOver:
    return UniformOver(words)
