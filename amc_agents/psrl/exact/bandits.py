"""Exact models of the two bandits."""

from __future__ import annotations

import numpy as np

from amc_agents.envs.exploration import payment, read_payment, read_pull
from amc_agents.psrl.exact.model import Policy, Stakes
from amc_agents.psrl.exact.priors import Beta, Independent, UniformOver
from amc_agents.types import FloatArray, Step, Task, Trajectory


class BetaBernoulli:
    """The Bernoulli bandit: Beta(1, 1) for every arm, independent."""

    def prior(self, task: Task) -> Independent:
        """One Beta an arm."""
        return Independent({_MEAN.format(arm): Beta() for arm in task.payload.arms})

    def updated(self, posterior: Independent, step: Step) -> Independent:
        """Count what the arm paid."""
        pull = read_pull(step.observation)
        return posterior if pull is None else posterior.observed(_MEAN.format(pull[0]), pull[1])

    def policy(self, task: Task, hypothesis: dict[str, float]) -> Policy:
        """The arm with the largest mean."""
        best = max(task.payload.arms, key=lambda arm: hypothesis[_MEAN.format(arm)])
        return lambda trajectory: str(best)


class BestArm:
    """The informative bandit: every arm but 0 may be the best one, evenly."""

    def prior(self, task: Task) -> UniformOver:
        """Over the arms' numbers, without 0."""
        return UniformOver(task.payload.actions[1:])

    def updated(self, posterior: UniformOver, step: Step) -> UniformOver:
        """Keep those best arms that explain the payment."""
        told = read_payment(step.observation)
        if told is None:
            return posterior
        arm, paid = told
        return posterior.given(lambda best: abs(payment(arm, int(best)) - paid) < _ROUNDING)

    def policy(self, task: Task, hypothesis: str) -> Policy:
        """The best arm."""
        return lambda trajectory: hypothesis

    def stakes(self, posterior: UniformOver, trajectory: Trajectory) -> Stakes:
        """What arm 0 shows is the best arm itself; another arm shows whether it is the best."""
        actions = trajectory.task.payload.actions
        candidates = [int(best) for best in posterior.items]
        paid = np.array([[payment(arm, best) for best in candidates] for arm in range(len(actions))])
        gains = np.array([entropy(np.unique(row, return_counts=True)[1] / len(candidates)) for row in paid])
        # The mean of equal payments may be a rounding error off; a regret is never below 0.
        return Stakes(actions, np.maximum(1.0 - paid.mean(axis=1), 0.0), gains)


def entropy(probabilities: FloatArray) -> float:
    """In bits, of a distribution; outcomes of probability 0 add nothing."""
    some = probabilities[probabilities > 0]
    return float(max(-(some * np.log2(some)).sum(), 0.0))


_MEAN = "mean of arm {}"
_ROUNDING = 1e-6
"""Payments are told with six digits."""
