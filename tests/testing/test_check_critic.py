from __future__ import annotations

import numpy as np
import pytest

from amc_agents.critics.spec import UniformCritic
from amc_agents.testing import check_critic
from amc_agents.testing import checks as contract
from amc_agents.types import Step, Task, Trajectory

TASK = Task("t", "go")
TRAJECTORIES = [Trajectory(TASK, tuple(Step(f"a{i}", reward=0.5) for i in range(length))) for length in range(4)]


class Lengths:
    """A good critic: as many as there are steps."""

    async def values(self, trajectories):
        return np.array([float(len(trajectory.steps)) for trajectory in trajectories])


class Calls(Lengths):
    calls = 0

    async def values(self, trajectories):
        self.calls += 1
        return await super().values(trajectories) + self.calls


class Positions(Lengths):
    async def values(self, trajectories):
        return np.arange(len(trajectories), dtype=np.float64)


class Company(Lengths):
    async def values(self, trajectories):
        return await super().values(trajectories) / max(len(trajectories), 1)


class Objects(Lengths):
    """Knows trajectories by the object that they are."""

    def __init__(self):
        self.known = []

    async def values(self, trajectories):
        for trajectory in trajectories:
            if not any(trajectory is other for other in self.known):
                self.known.append(trajectory)
        places = [next(i for i, other in enumerate(self.known) if trajectory is other) for trajectory in trajectories]
        return np.array(places, dtype=np.float64)


class Answers(Lengths):
    def __init__(self, answer):
        self.answer = answer

    async def values(self, trajectories):
        return self.answer(len(trajectories))


@pytest.mark.parametrize("critic", [Lengths(), UniformCritic()])
async def test_a_good_critic_passes(critic):
    await check_critic(critic, TRAJECTORIES)


@pytest.mark.parametrize(
    ("critic", "sentence"),
    [
        (Answers(lambda n: np.zeros(max(n, 1))), contract.EMPTY_BATCH),
        (Answers(lambda n: np.zeros((n, 1)) if n else np.zeros(0)), contract.SHAPE),
        (Answers(lambda n: [0.0] * n if n else np.zeros(0)), contract.SHAPE),
        (Answers(lambda n: np.array(["a"] * n) if n else np.zeros(0)), contract.SHAPE),
        (Answers(lambda n: np.full(n, np.nan)), contract.FINITE),
        (Answers(lambda n: np.full(n, -np.inf)), contract.FINITE),
        (Calls(), contract.REPEATABLE),
        (Positions(), contract.ORDER),
        (Company(), contract.COMPANY),
        (Objects(), contract.DUPLICATES),
    ],
)
async def test_a_broken_critic_is_caught_by_its_sentence(critic, sentence):
    with pytest.raises(AssertionError) as caught:
        await check_critic(critic, TRAJECTORIES)
    assert str(caught.value).startswith(sentence)


async def test_the_tolerance_allows_for_rounding():
    class Rounds(Lengths):
        async def values(self, trajectories):
            return await super().values(trajectories) + 1e-3 * len(trajectories)

    await check_critic(Rounds(), TRAJECTORIES, tolerance=1e-1)
    with pytest.raises(AssertionError):
        await check_critic(Rounds(), TRAJECTORIES)


async def test_one_trajectory_shows_nothing():
    with pytest.raises(ValueError, match="two different"):
        await check_critic(Lengths(), TRAJECTORIES[:1] * 3)
