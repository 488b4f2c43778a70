from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

from amc_agents.envs import CopyFork, NoFork, ReplayFork
from amc_agents.envs.crafting import CraftingWorld, generate_task, plan
from amc_agents.errors import EnvironmentStateError, ForkError, ReplayDivergence
from amc_agents.testing.checks import DIFFERENT_SEEDS, SAME_SEED, check_environment
from amc_agents.types import Environment, Task, TimeStep

TASK = Task("dice/0", "Roll five times.")


class Dice:
    """Five rolls of a die; the last pays their sum. Has no fork of its own."""

    opened = 0

    def __init__(self, seed: int) -> None:
        type(self).opened += 1
        self.rng, self.closed = np.random.default_rng(seed), False
        self.rolls: list[int] | None = None

    async def reset(self, task: Task) -> TimeStep:
        self.rolls = []
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        if self.rolls is None or len(self.rolls) == 5:
            raise EnvironmentStateError("reset first")
        self.rolls.append(int(self.rng.integers(1, 7)))
        text = f"{self.rolls} after {action[:9]!r}"
        return TimeStep.truncation(text, sum(self.rolls)) if len(self.rolls) == 5 else TimeStep.transition(text)

    async def close(self) -> None:
        if not self.closed:
            type(self).opened -= 1
        self.closed = True


class ReseedableDice(Dice):
    async def reseed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)


async def rolls(world: Environment, count: int) -> list[TimeStep]:
    return [await world.step("roll") for _ in range(count)]


@pytest.mark.parametrize(
    "make", [lambda: ReplayFork(ReseedableDice, 3), lambda: CopyFork(ReseedableDice(3))], ids=["replay", "copy"]
)
async def test_wrapped_stochastic_world_keeps_the_contract(make):
    await check_environment(make, TASK, ["roll"] * 5, stochastic=True)


@pytest.mark.parametrize(
    "make",
    [lambda: ReplayFork(lambda seed: CraftingWorld()), lambda: CopyFork(CraftingWorld())],
    ids=["replay", "copy"],
)
async def test_wrapped_crafting_world_keeps_the_contract(make):
    task = generate_task(1, depth=2)
    await check_environment(make, task, plan(task.payload.book, task.payload.goal) or [])


@pytest.mark.parametrize("make", [lambda: ReplayFork(Dice, 3), lambda: CopyFork(Dice(3))], ids=["replay", "copy"])
async def test_world_without_reseed_gives_every_fork_the_same_luck(make):
    # Documented, and the check says so.
    with pytest.raises(AssertionError, match=DIFFERENT_SEEDS):
        await check_environment(make, TASK, ["roll"] * 5, stochastic=True)


async def test_fork_of_forks_relives_every_change_of_luck():
    world = ReplayFork(ReseedableDice, 1)
    await world.reset(TASK)
    for seed in (20, 30, 40):
        (seen,) = await rolls(world, 1)
        twin, world = await world.fork(seed), await world.fork(seed)
        (answer,) = await rolls(twin, 1)
        assert answer.observation.startswith(seen.observation[: seen.observation.index("]")])
        assert await rolls(await world.fork(50), 1) == await rolls(await world.fork(50), 1)


async def test_fork_before_reset_is_a_fresh_world_of_its_own_seed():
    one = await ReplayFork(ReseedableDice, 1).fork(7)
    two = ReplayFork(ReseedableDice, 7)
    for world in (one, two):
        await world.reset(TASK)
    assert await rolls(one, 5) == await rolls(two, 5)


async def test_reset_starts_the_same_luck_again():
    world = ReplayFork(ReseedableDice, 1)
    await world.reset(TASK)
    first = await rolls(world, 3)
    await world.reset(TASK)
    assert await rolls(world, 3) == first
    assert await rolls(await world.fork(5), 2) == await rolls(await world.fork(5), 2)


@pytest.mark.parametrize("length", [0, 1, 3])
async def test_divergence_names_the_step_and_closes_the_fresh_world(length):
    seeds = itertools.count()
    world = ReplayFork(lambda seed: Dice(next(seeds)))
    await world.reset(TASK)
    seen = await rolls(world, 3)
    world._make = lambda seed: _Lying(seen, length)
    with pytest.raises(ReplayDivergence, match=f"diverged at step {length}") as caught:
        await world.fork(1)
    assert caught.value.step == length
    assert caught.value.expected == (seen[length - 1].observation if length else TASK.instruction)
    assert caught.value.actual == "a lie"
    assert _Lying.closed == length


class _Lying:
    """Repeats a record, with another observation at one step."""

    closed = -1

    def __init__(self, record: list[TimeStep], lie: int) -> None:
        answers = [TimeStep.restart(TASK.instruction), *record]
        answers[lie] = TimeStep.transition("a lie")
        self.answers, self.lie = iter(answers), lie

    async def reset(self, task: Task) -> TimeStep:
        return next(self.answers)

    async def step(self, action: str) -> TimeStep:
        return next(self.answers)

    async def close(self) -> None:
        type(self).closed = self.lie


async def test_reward_and_end_are_checked_too():
    world = ReplayFork(Dice, 1)
    await world.reset(TASK)
    (seen,) = await rolls(world, 1)
    world._make = lambda seed: _OtherReward(seen)
    with pytest.raises(ReplayDivergence, match=r"reward=0\.5"):
        await world.fork(1)


class _OtherReward(Dice):
    def __init__(self, seen: TimeStep) -> None:
        super().__init__(0)
        self.seen = seen

    async def step(self, action: str) -> TimeStep:
        return TimeStep.transition(self.seen.observation, 0.5)


async def test_every_world_that_was_opened_is_closed():
    before = Dice.opened
    world = ReplayFork(Dice, 1)
    await world.reset(TASK)
    await world.reset(TASK)
    fork = await world.fork(1)
    assert Dice.opened == before + 2
    for used in (fork, world, world):
        await used.close()
    assert Dice.opened == before
    with pytest.raises(EnvironmentStateError, match="after close"):
        await world.step("roll")


async def test_copy_refuses_what_cannot_be_copied():
    class Locked(Dice):
        def __init__(self) -> None:
            super().__init__(1)
            self.lock = threading.Lock()

    with pytest.raises(ForkError, match=r"Locked cannot be copied .*lock.*ReplayFork"):
        await CopyFork(Locked()).fork(1)


async def test_a_copy_that_cannot_be_reseeded_is_closed():
    closed: list[int] = []

    class Unwilling(ReseedableDice):
        async def reseed(self, seed: int) -> None:
            raise RuntimeError("no other future")

        async def close(self) -> None:
            closed.append(1)

    world = CopyFork(Unwilling(1))
    await world.reset(TASK)
    with pytest.raises(RuntimeError, match="no other future"):
        await world.fork(1)
    assert closed == [1]


async def test_copy_shares_the_task():
    class Remembers(Dice):
        async def reset(self, task: Task) -> TimeStep:
            self.task = task
            return await super().reset(task)

    world = CopyFork(Remembers(1))
    await world.reset(TASK)
    twin = await world.fork(1)
    copied: Any = twin._world
    assert copied.task is TASK
    assert copied is not world._world


async def test_global_randomness_is_shown_up_by_the_check():
    rng = np.random.default_rng(0)

    class Global(Dice):
        def __init__(self) -> None:
            super().__init__(0)
            self.draw = lambda: rng  # deepcopy takes functions by reference

        async def step(self, action: str) -> TimeStep:
            self.rng = self.draw()
            return await super().step(action)

    with pytest.raises(AssertionError, match=f"{SAME_SEED}|does not change its origin"):
        await check_environment(lambda: CopyFork(Global()), TASK, ["roll"] * 5, stochastic=True)


async def test_no_fork_runs_and_refuses():
    def make() -> NoFork:
        return NoFork(Dice(1), "it is a real die")

    await check_environment(make, TASK, ["roll"] * 5, stochastic=True, forks=False)
    with pytest.raises(ForkError, match="Dice cannot be forked: it is a real die"):
        await make().fork(1)


@pytest.mark.parametrize("world", [ReplayFork(Dice), CopyFork(Dice(0)), NoFork(Dice(0), "")])
def test_wrappers_are_environments(world):
    assert isinstance(world, Environment)
