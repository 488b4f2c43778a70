"""Exact models of the two bandits."""

from __future__ import annotations

import numpy as np

from amc_agents.psrl.posterior.priors import Beta, Independent, UniformOver
from amc_agents.types import FloatArray, Step, Task, Trajectory
from amc_agents_exploration.exact.model import Policy, Stakes
from amc_agents_exploration.worlds import payment, read_payment, read_pull


class BetaBernoulli:
    """Model of the Bernoulli bandit: independent Beta(1, 1) priors."""

    def prior(self, task: Task) -> Independent:
        """Return a Beta prior per arm."""
        return Independent({_MEAN.format(arm): Beta() for arm in task.payload.arms})

    def updated(self, posterior: Independent, step: Step) -> Independent:
        """Count the arm's reward."""
        pull = read_pull(step.observation)
        return posterior if pull is None else posterior.observed(_MEAN.format(pull[0]), pull[1])

    def policy(self, task: Task, hypothesis: dict[str, float]) -> Policy:
        """Return the arm with the largest mean."""
        best = max(task.payload.arms, key=lambda arm: hypothesis[_MEAN.format(arm)])
        return lambda trajectory: str(best)


class BestArm:
    """Model of the informative bandit: every arm except 0 is equally likely to be the best."""

    def prior(self, task: Task) -> UniformOver:
        """Return the uniform prior over the arms without arm 0."""
        return UniformOver(task.payload.actions[1:])

    def updated(self, posterior: UniformOver, step: Step) -> UniformOver:
        """Keep the candidates that explain the payment."""
        pull = read_payment(step.observation)
        if pull is None:
            return posterior
        arm, paid = pull
        return posterior.given(lambda best: abs(payment(arm, int(best)) - paid) < _ROUNDING)

    def policy(self, task: Task, hypothesis: str) -> Policy:
        """Return the best arm."""
        return lambda trajectory: hypothesis

    def stakes(self, posterior: UniformOver, trajectory: Trajectory) -> Stakes:
        """Arm 0 identifies the best arm; any other arm shows whether it is the best."""
        actions = trajectory.task.payload.actions
        candidates = [int(best) for best in posterior.items]
        paid = np.array([[payment(arm, best) for best in candidates] for arm in range(len(actions))])
        gains = np.array([entropy(np.unique(row, return_counts=True)[1] / len(candidates)) for row in paid])
        # Rounding may put the mean of equal payments above 1; a regret is at least 0.
        return Stakes(actions, np.maximum(1.0 - paid.mean(axis=1), 0.0), gains)


def entropy(probabilities: FloatArray) -> float:
    """Return the entropy of a distribution in bits."""
    positive = probabilities[probabilities > 0]
    return float(max(-(positive * np.log2(positive)).sum(), 0.0))


_MEAN = "mean of arm {}"
_ROUNDING = 1e-6
"""Tolerance for payments, which observations give to six digits."""
