"""Regret and information of each action, against their definitions by enumeration."""

from collections import Counter
from math import log2

import numpy as np
import pytest

from amc_agents.types import Step, Trajectory
from amc_agents_exploration.exact import BestArm, ConsistentSequences
from amc_agents_exploration.worlds import CODES, feedback_on, informative_bandit_task, lock_task, payment


def information(hypotheses, shown):
    """I(hypothesis; what is shown), in bits, by its definition: H(hypothesis) - E H(hypothesis | shown)."""
    groups = Counter(shown(hypothesis) for hypothesis in hypotheses)
    return log2(len(hypotheses)) - sum(n / len(hypotheses) * log2(n) for n in groups.values())


@pytest.mark.parametrize("ruled_out", [0, 3, 9])
def test_of_the_informative_bandit(ruled_out):
    task = informative_bandit_task(0)
    posterior = BestArm().prior(task)
    if ruled_out:
        posterior = posterior.given(lambda best: int(best) > ruled_out)
    bests = [int(best) for best in posterior.items]
    stakes = BestArm().stakes(posterior, Trajectory(task))
    assert stakes.actions == task.payload.actions
    for arm in range(11):
        assert stakes.regrets[arm] == pytest.approx(np.mean([1 - payment(arm, best) for best in bests]))
        assert stakes.gains[arm] == pytest.approx(
            information(bests, lambda best, arm=arm: payment(arm, best)), abs=1e-9
        )


def entered(task, guess, answer):
    trajectory = Trajectory(task)
    told = {"right": "is in the right place", "elsewhere": "occurs, but in another place", "absent": "does not occur"}
    for place, digit in enumerate(guess):
        observation = f"Place {place + 1}: {digit} {told[feedback_on(digit, place, answer)]}."
        trajectory = trajectory.extended(Step(digit, observation))
    return trajectory


@pytest.mark.parametrize(("guess", "answer"), [("", "123"), ("1", "123"), ("2", "123"), ("12", "123"), ("90", "123")])
def test_of_the_lock(guess, answer):
    task, model = lock_task(0), ConsistentSequences()
    trajectory = entered(task, guess, answer)
    posterior = model.prior(task)
    for step in trajectory.steps:
        posterior = model.updated(posterior, step)
    place = len(guess)
    shown = [[feedback_on(digit, at, answer) for at, digit in enumerate(guess)]]
    possible = [code for code in CODES if [feedback_on(digit, at, code) for at, digit in enumerate(guess)] in shown]
    assert list(posterior.items) == possible
    stakes = model.stakes(posterior, trajectory)
    for digit in range(10):
        # V* is 1 while all was right; Q* of a digit is 1 for the codes that have it here.
        values = [float(code.startswith(guess)) for code in possible]
        q_values = [float(code.startswith(guess + str(digit))) for code in possible]
        assert stakes.regrets[digit] == pytest.approx(np.mean(values) - np.mean(q_values))
        gain = information(possible, lambda code, digit=digit: feedback_on(str(digit), place, code))
        assert stakes.gains[digit] == pytest.approx(gain, abs=1e-9)
