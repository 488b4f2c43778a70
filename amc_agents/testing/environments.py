"""A check of any environment against the contract of `Environment`."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.quoting import quoted
from amc_agents.types import Environment, Task, TimeStep

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


def _require(holds: bool, sentence: str, seen: str) -> None:
    if not holds:
        raise AssertionError(f"{sentence}: {seen}")
