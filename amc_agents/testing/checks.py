"""Checks of critics, worlds and restorable worlds against their contracts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import EnvironmentStateError, ForkError, WorldError
from amc_agents.quoting import quoted
from amc_agents.types import Critic, Environment, FloatArray, Restorable, Task, TimeStep, Trajectory

EMPTY_BATCH = "an empty batch gets an array of shape [0]"
SHAPE = "N trajectories get a numeric array of shape [N]"
FINITE = "every value is finite"
REPEATABLE = "the same batch gets the same values again"
ORDER = "a value does not depend on the order of the batch"
COMPANY = "a value does not depend on what else is in the batch"
DUPLICATES = "equal trajectories get equal values"


async def check_critic(critic: CriticLike, trajectories: Sequence[Trajectory], *, tolerance: float = 1e-5) -> None:
    """Check that a critic keeps the contract of `Critic` on some trajectories.

    Args:
        critic: the critic, in any form that `amc` accepts.
        trajectories: at least two different trajectories, preferably of different lengths, and with finished ones if
            the critic will be used without rewards.
        tolerance: maximum difference of two answers to the same question, in reward units. A model rounds differently
            in batches of other shapes. A sampled judge does not pass.

    Raises:
        AssertionError: the critic breaks the contract. The message has the broken sentence and the observation.
        ValueError: fewer than two different trajectories are given.
    """
    critic = parse_critic(critic)
    batch = list(trajectories)
    if len(set(batch)) < 2:
        raise ValueError(f"expected at least two different trajectories, got {len(set(batch))}")
    await _values(critic, [], EMPTY_BATCH)
    values = await _values(critic, batch)
    _require_close(await _values(critic, batch), values, REPEATABLE, tolerance)
    _require_close((await _values(critic, batch[::-1]))[::-1], values, ORDER, tolerance)
    alone = [float((await _values(critic, [trajectory]))[0]) for trajectory in batch]
    _require_close(np.array(alone), values, COMPANY, tolerance)
    twins = [replace(trajectory, steps=tuple(replace(step) for step in trajectory.steps)) for trajectory in batch]
    together = await _values(critic, [*batch, *twins])
    _require_close(together[: len(batch)], values, COMPANY, tolerance)
    _require_close(together[len(batch) :], values, DUPLICATES, tolerance)


async def _values(critic: Critic, trajectories: Sequence[Trajectory], sentence: str = SHAPE) -> FloatArray:
    answer = await critic.values(trajectories)
    numeric = isinstance(answer, np.ndarray) and np.issubdtype(answer.dtype, np.floating)
    seen = f"shape {list(answer.shape)}, {answer.dtype}" if isinstance(answer, np.ndarray) else type(answer).__name__
    if not numeric or answer.shape != (len(trajectories),):
        raise AssertionError(f"{sentence}: for {len(trajectories)} trajectories it gave {seen}")
    if not np.all(np.isfinite(answer)):
        raise AssertionError(f"{FINITE}: it gave {answer.tolist()}")
    return answer


def _require_close(actual: FloatArray, expected: FloatArray, sentence: str, tolerance: float) -> None:
    gaps = np.abs(actual - expected)
    if np.any(gaps > tolerance):
        worst = int(np.argmax(gaps))
        raise AssertionError(
            f"{sentence} (within {tolerance:g}): trajectory {worst} got {quoted(expected[worst])}, then "
            f"{quoted(actual[worst])}"
        )


FIRST_STEP = "reset returns a first TimeStep with an observation, without reward, and not at the end"
TIME_STEP = "step returns a TimeStep: text, a finite reward, and at most one of terminated and truncated"
STEP_BEFORE_RESET = "step before reset raises EnvironmentStateError"
STEP_AFTER_END = "step after the end raises EnvironmentStateError"
RESET_AGAIN = "reset restarts a task at any time"
MALFORMED_ACTION = "a malformed action gets an observation, never an exception"
REACHES_END = "the actions given to the check lead to the episode's end"
DETERMINISTIC = "a world declared deterministic gives the same answers to the same actions"
REFUSES_FORK = "a world declared without forks raises ForkError when forked"
SHARED_PAST = "a fork continues from its origin's state"
FORK_LEAVES_ORIGIN = "stepping or closing a fork does not change its origin"
ORIGIN_LEAVES_FORK = "stepping the origin does not change its fork"
SAME_SEED = "forks with the same seed have the same future"
DIFFERENT_SEEDS = "forks of a stochastic world with different seeds have different futures"
FORK_OF_ENDED = "a fork of an ended world is ended"
CLOSE_TWICE = "close may be called twice"

MALFORMED_ACTIONS = (
    "", " ", "\n", "\x00", "\u4e16\u754c \U0001fa93", "\ud800", "{}", "()[]*+?\\", "9" * 5000, "a" * 10_000, "a, b,,",
)  # fmt: skip
"""Actions that no world understands and every world must answer."""
_SEEDS = range(1, 17)


async def check_environment(
    make: Callable[[], Environment], task: Task, actions: Sequence[str], *, stochastic: bool = False, forks: bool = True
) -> None:
    """Check that a world keeps the contract of `Environment` on one task.

    Args:
        make: creates an independent world; called several times.
        task: a task of the world.
        actions: a sequence of actions from the first observation to the end of the episode. In a stochastic world an
            episode may end earlier, and some answers must be random.
        stochastic: whether the world may answer the same actions differently.
        forks: False for a world that must refuse to fork.

    Raises:
        AssertionError: the world breaks the contract. The message has the broken sentence and the observation.
    """
    await _check_order(make(), task, actions)
    await _check_malformed(make(), task)
    if not forks:
        await _check_refusal(make(), task)
        return
    await _check_fork_of_ended(make(), task, actions)
    alone = None if stochastic else await _play_alone(make, task, actions)
    for length in range(len(actions)):
        expected = None if alone is None else alone[length:]
        await _check_forks_at(make, task, actions[:length], actions[length:], expected)
    if stochastic:
        await _check_randomness(make(), task, actions)


async def _check_order(world: Environment, task: Task, actions: Sequence[str]) -> None:
    await _must_raise(EnvironmentStateError, STEP_BEFORE_RESET, lambda: world.step(actions[0]))
    first = await _start(world, task)
    await _play(world, actions[:1])
    again = await _start(world, task)
    _require(again == first, RESET_AGAIN, f"first {first}, then {again}")
    answers = await _play(world, actions)
    _require(answers[-1].done, REACHES_END, f"the last answer is {answers[-1]}")
    await _must_raise(EnvironmentStateError, STEP_AFTER_END, lambda: world.step(actions[-1]))
    again = await _start(world, task)
    _require(again == first, RESET_AGAIN, f"first {first}, after the end {again}")
    for _ in range(2):
        try:
            await world.close()
        except Exception as error:
            raise AssertionError(f"{CLOSE_TWICE}: it raised {quoted(error)}") from error


async def _check_malformed(world: Environment, task: Task) -> None:
    await _start(world, task)
    for action in MALFORMED_ACTIONS:
        try:
            answer = await world.step(action)
        except Exception as error:
            raise AssertionError(f"{MALFORMED_ACTION}: {quoted(action, 40)} raised {quoted(error)}") from error
        _check_answer(answer)
        if answer.done:
            await _start(world, task)
    await world.close()


async def _check_refusal(world: Environment, task: Task) -> None:
    await _start(world, task)
    await _must_raise(ForkError, REFUSES_FORK, lambda: world.fork(1))
    await world.close()


async def _check_fork_of_ended(world: Environment, task: Task, actions: Sequence[str]) -> None:
    await _start(world, task)
    await _play(world, actions)
    twin = await world.fork(1)
    await _must_raise(EnvironmentStateError, FORK_OF_ENDED, lambda: twin.step(actions[-1]))
    await twin.close()
    await world.close()


async def _check_forks_at(
    make: Callable[[], Environment],
    task: Task,
    past: Sequence[str],
    future: Sequence[str],
    expected: Sequence[TimeStep] | None,
) -> None:
    world = make()
    await _start(world, task)
    if any(answer.done for answer in await _play(world, past)):
        await world.close()  # The episode ended early.
        return
    first, waiting = await world.fork(1), await world.fork(1)
    seen = await _play(first, future, SHARED_PAST)
    await first.close()
    _require(expected is None or seen == expected, SHARED_PAST, f"after {list(past)}: {seen}, alone {expected}")
    late = await world.fork(1)
    seen_late = await _play(late, future, FORK_LEAVES_ORIGIN)
    _require(seen_late == seen, FORK_LEAVES_ORIGIN, f"a fork made later saw {seen_late}, the first {seen}")
    beside = await world.fork(1)
    seen_beside, seen_origin = await _play_together(beside, world, future)
    _require(seen_beside == seen, SAME_SEED, f"played in turn with its origin it saw {seen_beside}, alone {seen}")
    _require(
        expected is None or seen_origin == expected,
        FORK_LEAVES_ORIGIN,
        f"the origin saw {seen_origin}, alone {expected}",
    )
    seen_waiting = await _play(waiting, future, ORIGIN_LEAVES_FORK)
    _require(seen_waiting == seen, ORIGIN_LEAVES_FORK, f"played after its origin it saw {seen_waiting}, before {seen}")
    for used in (waiting, late, beside, world):
        await used.close()


async def _play_alone(make: Callable[[], Environment], task: Task, actions: Sequence[str]) -> list[TimeStep]:
    runs: list[list[TimeStep]] = []
    for world in (make(), make()):
        await _start(world, task)
        runs.append(await _play(world, actions))
        await world.close()
    _require(runs[0] == runs[1], DETERMINISTIC, f"first {runs[0]}, then {runs[1]}")
    return runs[0]


async def _check_randomness(world: Environment, task: Task, actions: Sequence[str]) -> None:
    await _start(world, task)
    futures = []
    for seed in _SEEDS:
        twin = await world.fork(seed)
        futures.append(await _play(twin, actions))
        await twin.close()
    _require(
        any(future != futures[0] for future in futures),
        DIFFERENT_SEEDS,
        f"{len(futures)} seeds all gave {futures[0]}",
    )
    await world.close()


async def _start(world: Environment, task: Task) -> TimeStep:
    first = await world.reset(task)
    _check_answer(first)
    _require(first.reward == 0.0 and not first.done and bool(first.observation), FIRST_STEP, f"it gave {first}")
    return first


async def _play(world: Environment, actions: Sequence[str], sentence: str = TIME_STEP) -> list[TimeStep]:
    answers: list[TimeStep] = []
    for action in actions:
        try:
            answers.append(await world.step(action))
        except Exception as error:
            raise AssertionError(f"{sentence}: {quoted(action)} raised {quoted(error)}") from error
        _check_answer(answers[-1])
        if answers[-1].done:
            break
    return answers


async def _play_together(
    first: Environment, second: Environment, actions: Sequence[str]
) -> tuple[list[TimeStep], list[TimeStep]]:
    seen: tuple[list[TimeStep], list[TimeStep]] = ([], [])
    for action in actions:
        for world, answers in zip((first, second), seen, strict=True):
            if not (answers and answers[-1].done):
                answers += await _play(world, [action], FORK_LEAVES_ORIGIN)
    return seen


def _check_answer(answer: object) -> None:
    good = (
        isinstance(answer, TimeStep)
        and isinstance(answer.observation, str)
        and math.isfinite(answer.reward)
        and not (answer.terminated and answer.truncated)
    )
    _require(good, TIME_STEP, f"it gave {quoted(answer)}")


async def _must_raise(error: type[Exception], sentence: str, attempt: Callable[[], Awaitable[object]]) -> None:
    try:
        answer = await attempt()
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{sentence}: it raised {quoted(other)}") from other
    raise AssertionError(f"{sentence}: it gave {quoted(answer)}")


World = TypeVar("World", bound=Restorable)
Change = Callable[[World, int], Awaitable[object] | object]
Read = Callable[[World], Awaitable[object] | object]

IS_RESTORABLE = "a restorable world has the async methods fork, close, snapshot, restore and release"
REFERENCE = "snapshot returns a reference of JSON values and bytes"
NOT_CHANGED = "snapshot does not change the world"
RESTORED = "restore gives a new world the state at the snapshot, whatever the saved world did afterwards"
OUTLIVES = "a snapshot outlives the world that it was taken of"
RESTORED_AGAIN = "several worlds may restore the same snapshot, which none of them changes"
FORKS_OF_RESTORED = "a restored world can be forked and saved"
RELEASED = "restore raises WorldError after release"
RELEASED_TWICE = "release may be called twice, by any world of the kind"


async def check_restorable(make: Callable[[], World], change: Change[World], read: Read[World]) -> None:
    """Check that a world keeps the contract of `Restorable`. Whether a snapshot survives the process is not checked.

    Args:
        make: creates an independent world, always in the same state; called several times.
        change: changes the world's state, differently for each number; async or sync.
        read: returns the world's state as a value that can be compared; async or sync.

    Raises:
        AssertionError: the world breaks the contract. The message has the broken sentence and the observation.
    """
    saved = make()
    _require(isinstance(saved, Restorable), IS_RESTORABLE, f"it is a {type(saved).__name__}")
    await _finish(change(saved, 1))
    state = await _finish(read(saved))
    reference = await saved.snapshot()
    _require(_is_plain(reference), REFERENCE, f"it gave {quoted(reference)}")
    _require(await _finish(read(saved)) == state, NOT_CHANGED, f"it was {quoted(state)}")
    await _finish(change(saved, 2))
    restored = await _restored(make, reference, read, state, RESTORED)
    await saved.close()
    again = await _restored(make, reference, read, state, OUTLIVES)
    await _finish(change(restored, 3))
    _require(await _finish(read(again)) == state, RESTORED_AGAIN, f"one world changed another from {quoted(state)}")
    await again.close()
    third = await _restored(make, reference, read, state, RESTORED_AGAIN)
    await _check_life_after(third, make, read, state)
    await _check_release(restored, third, reference)
    await restored.close()
    await third.close()


async def _check_life_after(world: World, make: Callable[[], World], read: Read[World], state: object) -> None:
    twin = await world.fork(1)
    seen = await _finish(read(twin))  # type: ignore[arg-type]
    await twin.close()
    _require(seen == state, FORKS_OF_RESTORED, f"the fork has {quoted(seen)}, its origin {quoted(state)}")
    reference = await world.snapshot()
    other = await _restored(make, reference, read, state, FORKS_OF_RESTORED)
    await other.release(reference)
    await other.close()


async def _check_release(first: World, second: World, reference: Any) -> None:
    for world in (first, second):
        try:
            await world.release(reference)
        except Exception as error:
            raise AssertionError(f"{RELEASED_TWICE}: it raised {quoted(error)}") from error
    try:
        await second.restore(reference)
    except WorldError:
        return
    except Exception as error:
        raise AssertionError(f"{RELEASED}: it raised {quoted(error)}") from error
    raise AssertionError(f"{RELEASED}: it raised nothing")


async def _restored(
    make: Callable[[], World], reference: Any, read: Read[World], state: object, sentence: str
) -> World:
    world = make()
    try:
        await world.restore(reference)
    except Exception as error:
        raise AssertionError(f"{sentence}: restore raised {quoted(error)}") from error
    seen = await _finish(read(world))
    _require(seen == state, sentence, f"it has {quoted(seen)}, saved was {quoted(state)}")
    return world


async def _finish(answer: Awaitable[object] | object) -> object:
    return await answer if inspect.isawaitable(answer) else answer


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool | bytes)


def _require(holds: bool, sentence: str, seen: str) -> None:
    if not holds:
        raise AssertionError(f"{sentence}: {seen}")
