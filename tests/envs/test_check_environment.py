"""The check passes on honest worlds (test_replay, test_world), and has to fail on each of these."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amc_agents.errors import EnvironmentStateError
from amc_agents.testing import checks as contract
from amc_agents.testing.checks import check_environment
from amc_agents.types import Task, TimeStep

TASK = Task("count/0", "Count to three.")
ACTIONS = ["up", "up", "up"]


class Counter:
    """Counts steps up to three; the last one pays 1. An honest world."""

    def __init__(self) -> None:
        self.box: list[int] | None = None

    async def reset(self, task: Task) -> TimeStep:
        self.box = [0]
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        if self.box is None or self.box[0] >= 3:
            raise EnvironmentStateError("reset first")
        self.box[0] += 1
        return self.answer(self.box[0])

    def answer(self, count: int) -> TimeStep:
        return TimeStep.termination("3", 1.0) if count == 3 else TimeStep.transition(str(count))

    async def fork(self, seed: int) -> Any:
        twin = type(self)()
        twin.box = None if self.box is None else list(self.box)
        return twin

    async def close(self) -> None:
        pass


class RewardAtReset(Counter):
    async def reset(self, task: Task) -> TimeStep:
        await super().reset(task)
        return TimeStep.transition(task.instruction, 1.0)


class StepsBeforeReset(Counter):
    async def step(self, action: str) -> TimeStep:
        self.box = self.box or [0]
        return await super().step(action)


class WrongError(Counter):
    async def step(self, action: str) -> TimeStep:
        if self.box is None:
            raise ValueError("not reset")
        return await super().step(action)


class StepsAfterEnd(Counter):
    async def step(self, action: str) -> TimeStep:
        if self.box is not None and self.box[0] == 3:
            return TimeStep.transition("3")
        return await super().step(action)


class NeverEnds(Counter):
    async def step(self, action: str) -> TimeStep:
        answer = await super().step(action)
        return TimeStep.transition(answer.observation)


class ResetsOnce(Counter):
    async def reset(self, task: Task) -> TimeStep:
        again = self.box is not None
        await super().reset(task)
        return TimeStep.restart("again" if again else task.instruction)


class RaisesOnNonsense(Counter):
    async def step(self, action: str) -> TimeStep:
        if self.box is not None and not action.isalpha():
            raise ValueError(action)
        return await super().step(action)


class NotText(Counter):
    def answer(self, count: int) -> TimeStep:
        return TimeStep(None, terminated=count == 3)  # type: ignore[arg-type]


class NanReward(Counter):
    def answer(self, count: int) -> TimeStep:
        return TimeStep(str(count), float("nan"), terminated=count == 3)


class BothEnds(Counter):
    def answer(self, count: int) -> TimeStep:
        return TimeStep(str(count), terminated=count == 3, truncated=count == 3)


class SharedState(Counter):
    async def fork(self, seed: int) -> Any:
        twin = type(self)()
        twin.box = self.box
        return twin


class ForkIsItself(Counter):
    async def fork(self, seed: int) -> Any:
        return self


class ForkStartsAfresh(Counter):
    async def fork(self, seed: int) -> Any:
        twin = type(self)()
        twin.box = None if self.box is None else [0 if self.box[0] < 3 else 3]
        return twin


class ForkForgetsTheEnd(Counter):
    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        if twin.box == [3]:
            twin.box = [2]
        return twin


class ForkDisturbsOrigin(Counter):
    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        if self.box is not None and self.box[0] < 3:
            self.box[0] = 0
        return twin


class ForkCopiesLate(Counter):
    """A fork reads its origin's state only when it is stepped."""

    origin: Counter | None = None

    async def step(self, action: str) -> TimeStep:
        if self.origin is not None and self.origin.box is not None:
            self.box, self.origin = list(self.origin.box), None
        return await super().step(action)

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.origin = self
        return twin


class ForkSeesTheEnd(Counter):
    """A fork's answers change once its origin has ended."""

    origin: Counter | None = None

    def answer(self, count: int) -> TimeStep:
        seen = self.origin is not None and self.origin.box == [3] and count < 3
        return TimeStep.transition("over there it is over") if seen else super().answer(count)

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.origin = self
        return twin


class RemembersForking(Counter):
    """Only the origin's own answers change when it has been forked."""

    forked = False

    def answer(self, count: int) -> TimeStep:
        return TimeStep.transition("forked") if self.forked and count < 3 else super().answer(count)

    async def fork(self, seed: int) -> Any:
        self.forked = True
        return await super().fork(seed)


class CloseOnce(Counter):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class ForkCloses(Counter):
    """Closing a fork closes what it shares with its origin."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [True]

    async def reset(self, task: Task) -> TimeStep:
        self.open = [True]
        return await super().reset(task)

    async def step(self, action: str) -> TimeStep:
        answer = await super().step(action)
        return answer if self.open[0] else TimeStep.transition("closed")

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.open = self.open
        return twin

    async def close(self) -> None:
        self.open[0] = False


class SecretlyRandom(Counter):
    def answer(self, count: int) -> TimeStep:
        return TimeStep.termination(str(random.random()), 1.0) if count == 3 else TimeStep.transition(str(count))


class Coin(Counter):
    """An honest stochastic world: each fork's coins come from its seed."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)

    def answer(self, count: int) -> TimeStep:
        text = f"{count}: {self.rng.random():.6f}"
        return TimeStep.termination(text, 1.0) if count == 3 else TimeStep.transition(text)

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.rng = random.Random(seed)
        return twin


class IgnoresSeed(Coin):
    """The future of every fork is the origin's."""

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.rng.setstate(self.rng.getstate())
        return twin


class FreshLuck(Coin):
    """The future of a fork is drawn from nowhere."""

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.rng = random.Random()
        return twin


class SharedLuck(Coin):
    """Fork and origin draw from one stream."""

    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        twin.rng = self.rng
        return twin


class ForkReseedsOrigin(Coin):
    async def fork(self, seed: int) -> Any:
        twin = await super().fork(seed)
        self.rng = twin.rng
        return twin


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (RewardAtReset, contract.FIRST_STEP),
        (StepsBeforeReset, contract.STEP_BEFORE_RESET),
        (WrongError, contract.STEP_BEFORE_RESET),
        (StepsAfterEnd, contract.STEP_AFTER_END),
        (NeverEnds, contract.REACHES_END),
        (ResetsOnce, contract.RESET_AGAIN),
        (RaisesOnNonsense, contract.MALFORMED_ACTION),
        (NotText, contract.TIME_STEP),
        (NanReward, contract.TIME_STEP),
        (BothEnds, contract.TIME_STEP),
        (SharedState, contract.FORK_LEAVES_ORIGIN),
        (ForkIsItself, contract.FORK_LEAVES_ORIGIN),
        (ForkStartsAfresh, contract.SHARED_PAST),
        (ForkForgetsTheEnd, contract.FORK_OF_ENDED),
        (ForkDisturbsOrigin, "fork"),
        (ForkCopiesLate, contract.ORIGIN_LEAVES_FORK),
        (ForkSeesTheEnd, contract.ORIGIN_LEAVES_FORK),
        (RemembersForking, contract.FORK_LEAVES_ORIGIN),
        (CloseOnce, contract.CLOSE_TWICE),
        (ForkCloses, "fork"),
        (SecretlyRandom, contract.DETERMINISTIC),
        (Coin, contract.SHARED_PAST),
    ],
)
async def test_broken_world_is_named(world, sentence):
    with pytest.raises(AssertionError, match=sentence):
        await check_environment(world, TASK, ACTIONS)


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (Counter, contract.DIFFERENT_SEEDS),
        (IgnoresSeed, contract.DIFFERENT_SEEDS),
        (FreshLuck, contract.FORK_LEAVES_ORIGIN),
        (SharedLuck, contract.FORK_LEAVES_ORIGIN),
        (ForkReseedsOrigin, contract.SAME_SEED),
        (SharedState, contract.FORK_LEAVES_ORIGIN),
    ],
)
async def test_broken_luck_is_named(world, sentence):
    with pytest.raises(AssertionError, match=sentence):
        await check_environment(world, TASK, ACTIONS, stochastic=True)


async def test_honest_worlds_pass():
    await check_environment(Counter, TASK, ACTIONS)
    await check_environment(Coin, TASK, ACTIONS, stochastic=True)


async def test_world_that_forks_though_declared_without_is_named():
    with pytest.raises(AssertionError, match=contract.REFUSES_FORK):
        await check_environment(Counter, TASK, ACTIONS, forks=False)
