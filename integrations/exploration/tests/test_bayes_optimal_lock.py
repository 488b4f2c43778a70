from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest

from amc_agents.envs.registry import world
from amc_agents.types import Task
from amc_agents_exploration.episodic import play_episode
from amc_agents_exploration.exact import (
    BayesOptimalLock,
    ClassicInformationDirected,
    ClassicPosteriorSampling,
    ConsistentSequences,
    least_regret,
)
from amc_agents_exploration.exact.lock_knowledge import NOTHING_KNOWN, OCCURS, n_consistent, outcomes
from amc_agents_exploration.worlds import CODES, CombinationLock, ExplorationWorld, episodes, feedback_on


async def failures(code, agent, seed=0, n_episodes=8):
    """Episodes in which an agent does not open the lock of that code."""
    rng = np.random.default_rng([5, seed])
    task = Task("lock", "", CombinationLock(answer=code, seed=0))
    played = [
        await play_episode(ExplorationWorld(), episode, agent, rng, horizon=3) for episode in episodes(task, n_episodes)
    ]
    return n_episodes - sum(trajectory.return_ for trajectory in played)


@pytest.mark.parametrize("seed", range(5))
def test_statuses_hold_all_that_feedback_says(seed):
    rng = np.random.default_rng(seed)
    code = CODES[rng.integers(720)]
    knowledge, possible = NOTHING_KNOWN, list(CODES)
    for place in [0, 1, 2] * 3:
        digit = int(rng.integers(10))
        feedback = feedback_on(str(digit), place, code)
        shown = outcomes(knowledge, place, digit)
        assert sum(outcome.n_codes for outcome in shown) == n_consistent(knowledge)
        (knowledge,) = (outcome.knowledge for outcome in shown if outcome.feedback == feedback)
        possible = [code for code in possible if feedback_on(str(digit), place, code) == feedback]
        assert n_consistent(knowledge) == len(possible)


def least_over_sets(codes, place, may_open, n_left):
    """The least regret by search over sets of codes, with no digit taken for like another."""
    if place == 3:
        if may_open:
            return 0.0
        return 1.0 + (least_over_sets(codes, 0, True, n_left - 1) if n_left > 1 else 0.0)
    if place == 0 and n_left == 1:
        return 1 - 1 / len(codes)  # the last attempt opens for one code at most, and for any one of them
    best = np.inf
    for digit in "0123456789":
        groups = {}
        for code in codes:
            groups.setdefault(feedback_on(digit, place, code), []).append(code)
        values = [
            len(group) * least_over_sets(group, place + 1, may_open and feedback == "right", n_left)
            for feedback, group in groups.items()
        ]
        best = min(best, sum(values) / len(codes))
    return best


def test_the_values_are_those_of_a_search_over_sets_of_codes():
    assert least_regret(1) == pytest.approx(719 / 720)
    assert least_regret(2) == pytest.approx(1 + least_over_second(2))


def least_over_second(n_episodes):
    # The first digit may be any: nothing is known of them. From the second on all are tried.
    groups = {}
    for code in CODES:
        groups.setdefault(feedback_on("0", 0, code), []).append(code)
    after = [
        len(group) * least_over_sets(group, 1, feedback == "right", n_episodes) for feedback, group in groups.items()
    ]
    return sum(after) / 720 - 1


@pytest.mark.thorough
async def test_over_all_codes_the_agent_has_exactly_the_least_regret():
    failed = [await failures(code, BayesOptimalLock()) for code in CODES]
    assert np.mean(failed) == pytest.approx(least_regret(8))
    assert max(failed) == 4  # five attempts always suffice


@cache
def expected_of_sampling(knowledge, n_left):
    """Episodes that exact posterior sampling fails in, by recursion over what is known and all that it may guess."""
    total = n_consistent(knowledge)
    if total == 1 or n_left == 0:
        return 0.0
    guesses = Counter()
    alike = {}
    for code in CODES:
        guess = tuple(map(int, code))
        statuses = tuple(knowledge[digit] for digit in guess)
        if all(status >> place & 1 for place, status in enumerate(statuses)) and all(
            digit in guess for digit in range(10) if knowledge[digit] >= OCCURS
        ):
            guesses[statuses] += 1
            alike[statuses] = guess
    failed = 0.0
    for statuses, count in guesses.items():
        states = {(knowledge, True): 1.0}
        for place, digit in enumerate(alike[statuses]):
            after = defaultdict(float)
            for (known, may_open), chance in states.items():
                for outcome in outcomes(known, place, digit):
                    share = outcome.n_codes / n_consistent(known)
                    after[outcome.knowledge, may_open and outcome.feedback == "right"] += chance * share
            states = after
        for (known, opened), chance in states.items():
            if not opened:
                failed += count / total * chance * (1 + expected_of_sampling(tuple(sorted(known)), n_left - 1))
    return failed


@pytest.mark.thorough
async def test_no_other_agent_does_better_and_information_helps():
    rows = []
    for seed, task in enumerate(world("combination-lock").tasks(200, "test", 0)):
        model, code = ConsistentSequences(), task.payload.answer
        agents = ClassicPosteriorSampling(model), ClassicInformationDirected(model)
        rows.append([await failures(code, agent, seed) for agent in agents])
    sampling, directed = np.mean(rows, axis=0)
    errors = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
    assert abs(sampling - expected_of_sampling(NOTHING_KNOWN, 8)) < 4 * errors[0]
    assert least_regret(8) < directed - 4 * errors[1]
    difference = np.array(rows)[:, 0] - np.array(rows)[:, 1]
    assert difference.mean() > 2 * np.std(difference) / np.sqrt(len(rows))


async def test_episodes_beyond_the_plan_are_played_too():
    assert await failures("907", BayesOptimalLock(2), n_episodes=12) < 12
