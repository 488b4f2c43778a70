"""The Bernoulli bandit (LLM-PSRL, section 5.1): each arm pays 1 with a fixed probability. An episode is one pull."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

import numpy as np

from amc_agents.types import Task, TimeStep, Trajectory
from amc_agents_exploration.worlds.world import Instance, drawn_seed, task_rng

_PAID = re.compile(r"Arm (\S+) paid ([01])\.")


@dataclass(frozen=True, kw_only=True)
class BernoulliBandit(Instance):
    """Independent arms with rewards 0 and 1."""

    arms: tuple[str, ...]
    """Names of the arms."""
    means: tuple[float, ...]
    """Probability of reward 1 for each arm."""

    @property
    def optimal_value(self) -> float:
        """Mean of the best arm."""
        return max(self.means)

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the arms."""
        return self.arms

    def start(self) -> None:
        """Return None, the only state."""

    def advance(self, state: None, action: str, rng: np.random.Generator) -> tuple[None, TimeStep]:
        """Pull the arm and end the episode."""
        if action not in self.arms:
            return None, TimeStep.termination(
                "That is not the name of an arm: the pull is lost, and nothing is paid.", 0.0
            )
        reward = int(rng.random() < self.means[self.arms.index(action)])
        return None, TimeStep.termination(f"Arm {action} paid {reward}.", float(reward))

    def regret(self, trajectory: Trajectory) -> float:
        """Return the best mean minus the pulled arm's mean. A lost pull counts as mean 0."""
        means = dict(zip(self.arms, self.means, strict=True))
        return sum(self.optimal_value - means.get(step.action.strip(), 0.0) for step in trajectory.steps)


def bandit_task(seed: int, split: str = "train", *, n_arms: int = 5, best: float = 0.6, others: float = 0.4) -> Task:
    """Create a bandit with one better arm drawn at random. The names are random letters and carry no information.

    Args:
        seed: any non-negative integer.
        split: name of the seed stream.
        n_arms: number of arms, 2 to 26.
        best: mean of the better arm.
        others: mean of all other arms.
    """
    rng = task_rng(split, seed)
    arms = tuple(string.ascii_uppercase[i] for i in rng.permutation(26)[:n_arms])
    best_arm = int(rng.integers(n_arms))
    means = tuple(best if arm == best_arm else others for arm in range(n_arms))
    instance = BernoulliBandit(arms=arms, means=means, seed=drawn_seed(rng))
    return Task(f"bandit/{split}/{seed}", _RULES.format(n_arms=n_arms, arms=", ".join(arms)), instance)


def read_pull(observation: str) -> tuple[str, int] | None:
    """Parse the arm and its reward; None for a lost pull."""
    match = _PAID.fullmatch(observation)
    return (match[1], int(match[2])) if match else None


_RULES = """\
There are {n_arms} slot machine arms: {arms}. A pull of an arm pays 1 or 0. Each arm pays 1 with a fixed probability \
of its own, which nobody tells you and which does not depend on the other arms or on earlier pulls.
You make one pull in each episode, and the same arms come again in the next. Earn as much as you can over all \
episodes.
An action is the name of an arm. Anything else loses the pull."""
