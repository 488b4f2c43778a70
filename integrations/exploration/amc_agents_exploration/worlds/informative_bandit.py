"""The informative bandit (LLM-PSRL, section 6.2.2): arm 0 pays little and reveals the best of the other arms."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from amc_agents.types import Task, TimeStep, Trajectory
from amc_agents_exploration.worlds.world import Instance, drawn_seed, task_rng

_PAID = re.compile(r"Arm (\d+) paid (\d\.\d{6})\.")


@dataclass(frozen=True, kw_only=True)
class InformativeBandit(Instance):
    """Deterministic arms 0 to `n_arms` - 1: the best arm pays 1, arm 0 pays 1 / (2 best), and the others pay 0."""

    best: int
    """Number of the best arm, 1 to `n_arms` - 1."""
    n_arms: int
    """Number of arms, including arm 0."""

    @property
    def optimal_value(self) -> float:
        """Reward of the best arm."""
        return 1.0

    @property
    def actions(self) -> tuple[str, ...]:
        """Numbers of the arms."""
        return tuple(str(arm) for arm in range(self.n_arms))

    def pay(self, arm: int) -> float:
        """Return the reward of an arm."""
        return payment(arm, self.best)

    def start(self) -> None:
        """Return None, the only state."""

    def advance(self, state: None, action: str, rng: np.random.Generator) -> tuple[None, TimeStep]:
        """Pull the arm and end the episode."""
        if action not in self.actions:
            return None, TimeStep.termination("That is not the number of an arm: the pull is lost.", 0.0)
        reward = self.pay(int(action))
        return None, TimeStep.termination(f"Arm {action} paid {reward:.6f}.", reward)

    def regret(self, trajectory: Trajectory) -> float:
        """Return 1 minus the reward of the pulled arm."""
        pays = {action: self.pay(arm) for arm, action in enumerate(self.actions)}
        return sum(1.0 - pays.get(step.action.strip(), 0.0) for step in trajectory.steps)


def payment(arm: int, best: int) -> float:
    """Return the reward of `arm` if `best` is the best arm."""
    if arm == 0:
        return 1 / (2 * best)
    return 1.0 if arm == best else 0.0


def informative_bandit_task(seed: int, split: str = "train", *, n_arms: int = 11) -> Task:
    """Create an informative bandit whose best arm is drawn uniformly from 1 to `n_arms` - 1."""
    rng = task_rng(split, seed)
    instance = InformativeBandit(best=int(rng.integers(1, n_arms)), n_arms=n_arms, seed=drawn_seed(rng))
    return Task(f"informative-bandit/{split}/{seed}", _RULES.format(n_arms=n_arms, last=n_arms - 1), instance)


def read_payment(observation: str) -> tuple[int, float] | None:
    """Parse the arm and its reward (to six digits); None for a lost pull."""
    match = _PAID.fullmatch(observation)
    return (int(match[1]), float(match[2])) if match else None


_RULES = """\
There are {n_arms} slot machine arms, numbered 0 to {last}. Every arm always pays the same. One of the arms 1 to \
{last} is the best and pays 1; each of them is equally likely to be it. The others of them pay 0. Arm 0 pays 1 / (2 \
x the number of the best arm).
You make one pull in each episode, and the same arms come again in the next. Earn as much as you can over all \
episodes.
An action is the number of an arm. Anything else loses the pull."""
