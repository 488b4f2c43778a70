"""The shared draws, noisy critics and rollouts of reproduce/dose."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from amc_agents.bench.workshop_critic import WorkshopCritic
from amc_agents.critics.render import turn
from amc_agents.envs.registry import world
from reproduce.beyond.filtering import filtered
from reproduce.beyond.play import Policy
from reproduce.dose import gains
from reproduce.dose.draws import Forest, Node
from reproduce.dose.judges import Rollouts
from reproduce.dose.lockstep import Seat, Together
from reproduce.dose.noise import SPREAD, Level, NoisyPlanner

WORLD = world("crafting-stock-hidden")
TASK = next(iter(WORLD.tasks(1, "train", 320_001)))


@pytest.fixture(scope="module")
def policy():
    return Policy(str(WORLD.model))


def played(policy, *settings, seed=0, level=0.1):
    """Run searches side by side: (temperature, n, points) -> seats and what they found."""
    together = Together(Forest(policy, TASK, WORLD.make, seed))
    judge = NoisyPlanner(Level(level), seed)
    seats = [Seat(together, judge, (heat,), hide_rewards=True) for heat, _, _ in settings]
    searches = [
        filtered(seat, n, points, 0.1, np.random.default_rng(seed))
        for seat, (_, n, points) in zip(seats, settings, strict=True)
    ]
    return seats, asyncio.run(together.run(searches))


@pytest.fixture(scope="module")
def alone(policy):
    return played(policy, (0.9, 6, (3, 6)))


def test_a_run_does_not_depend_on_the_runs_beside_it(policy, alone):
    seats, found = played(policy, (0.5, 3, (2,)), (0.9, 6, (3, 6)), (0.9, 4, ()))
    assert [state.node.dialogue for state in found[1].states] == [state.node.dialogue for state in alone[1][0].states]
    assert found[1].log_weights == alone[1][0].log_weights
    assert seats[1].policy_tokens == alone[0][0].policy_tokens
    assert seats[1].critic_tokens == alone[0][0].critic_tokens


def test_the_draws_of_a_run_differ_and_another_seed_gives_others(policy, alone):
    dialogues = {state.node.dialogue for state in alone[1][0].states}
    assert len(dialogues) > 1
    other = {state.node.dialogue for state in played(policy, (0.9, 6, (3, 6)), seed=1)[1][0].states}
    assert dialogues != other


def test_a_single_run_costs_its_dialogue(policy):
    (seat,), (found,) = played(policy, (0.7, 1, ()))
    (state,) = found.states
    last = len(state.node.dialogue) - len(state.node.parent.dialogue)
    assert seat.policy_calls == len(state.node.trajectory.steps)
    # What follows the last turn is never read.
    assert len(state.node.dialogue) - last < seat.policy_tokens < len(state.node.dialogue)
    assert seat.critic_tokens == len(state.node.dialogue)


def nodes_of(found):
    """All states of the trajectories."""
    known = {}
    for state in found.states:
        node = state.node
        while node is not None:
            known[node.dialogue] = node
            node = node.parent
    return list(known.values())


def test_without_noise_the_values_are_the_planners(alone):
    nodes = nodes_of(alone[1][0])
    values = asyncio.run(NoisyPlanner(Level(0.0), 0).values(nodes))
    expected = asyncio.run(WorkshopCritic().values([node.trajectory for node in nodes]))
    np.testing.assert_allclose(values, expected)
    assert len(set(values.tolist())) > 2


@pytest.mark.parametrize("inherited", [0.0, 0.9])
def test_noise_is_standard_normal_and_inherited(inherited):
    nodes, chain = [], None
    for number in range(4000):
        chain = Node(None, None, (number,), chain if number % 50 else None)
        nodes.append(chain)
    critic = NoisyPlanner(Level(math.inf, inherited), 3)
    noise = asyncio.run(critic.values(nodes)).reshape(80, 50) / SPREAD
    # The mean of 80 chains of 50 correlated draws has a standard error of at most 0.07.
    assert abs(noise.mean()) < 0.25
    assert abs(noise.std() - 1) < 0.15
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1] - inherited) < 0.06
    again = asyncio.run(NoisyPlanner(Level(math.inf, inherited), 3).values(nodes[:100]))
    np.testing.assert_array_equal(again / SPREAD, noise.ravel()[:100])


def test_rollouts_continue_from_a_state_and_know_finished_ones(policy, alone):
    ended = alone[1][0].states[0].node
    critic = Rollouts(Forest(policy, TASK, WORLD.make, 7), 0.7, 4)
    first, last, again = asyncio.run(critic.values([ended.parent, ended, ended.parent]))
    assert last == ended.trajectory.return_
    assert first == again
    assert first in {0.0, 0.25, 0.5, 0.75, 1.0}


def test_particles_in_the_same_state_read_it_once(policy):
    seats, found = played(policy, *[(0.0, n, ()) for n in (1, 2, 3)])
    one, two, three = (seat.policy_tokens for seat in seats)
    steps = found[0].states[0].node.trajectory.steps
    written = sum(len(policy.tokenizer.encode(turn(step), special=False)) + 1 for step in steps)
    assert (two - one, three - two) == (written, written)
    assert len({seat.critic_tokens for seat in seats}) == 1
    assert seats[2].policy_calls == 3 * seats[0].policy_calls


def test_a_line_through_levels_has_intervals_over_tasks(monkeypatch):
    """Gains of 2 (AUC - .6) plus noise over tasks: the line crosses 0 at .6, and a gain of 0 at .7 lies .2 below it."""
    monkeypatch.setattr(gains, "N_RESAMPLES", 1_000)
    rng = np.random.default_rng(0)
    noise, tasks = rng.normal(0, 0.1, 200), [f"t{number}" for number in range(200)]

    def row(area, gain):
        picks = {(task, 0): gain + each for task, each in zip(tasks, noise, strict=True)}
        return gains.Row("c", "s", 0.5, dict.fromkeys(tasks, area), 1.0, picks, dict.fromkeys(picks, 0.0), 5.0, 20)

    levels = [row(area, 2 * (area - 0.6)) for area in (0.5, 0.6, 0.7, 0.8)]
    zero = gains.crossing(levels)
    # The noise is that of the task, so it moves the whole line: by its mean in gain, by half of that in AUC.
    assert zero.mean == pytest.approx(0.6 - noise.mean() / 2)
    assert zero.low < zero.mean < zero.high
    assert (zero.high - zero.low) / 2 == pytest.approx(1.96 * noise.std() / 200**0.5 / 2, rel=0.1)
    below = gains.below_the_line(levels, row(0.7, 0.0))
    assert below == pytest.approx((0.2, 0.2, 0.2))
