from __future__ import annotations

import asyncio
import gc
import inspect
import weakref

import pytest

from amc_agents.concurrency.gather import at_most, side_by_side


async def test_results_come_in_order_and_no_more_than_the_limit_run_at_once():
    running, most = 0, 0

    async def work(number):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01 * (4 - number))
        running -= 1
        return number

    assert await side_by_side(*map(work, range(4)), limit=2) == [0, 1, 2, 3]
    assert most == 2
    assert await side_by_side(*map(work, range(4))) == [0, 1, 2, 3]
    assert most == 4
    assert await side_by_side() == []


async def test_a_smaller_limit_of_the_context_precedes():
    running, most = 0, []

    async def work():
        nonlocal running
        running += 1
        most.append(running)
        await asyncio.sleep(0)
        running -= 1

    for outer, inner, limit, expected in (
        (3, None, None, 3),
        (3, 2, None, 2),
        (2, 5, None, 2),
        (None, None, 4, 4),
        (2, None, 4, 2),
    ):
        most.clear()
        with at_most(outer), at_most(inner):
            await side_by_side(*(work() for _ in range(6)), limit=limit)
        assert max(most) == expected
    most.clear()
    await side_by_side(*(work() for _ in range(6)))
    assert max(most) == 6


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_failure_cancels_the_others_and_is_raised_itself(limit):
    ended = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fail():
        await asyncio.sleep(0)
        raise ValueError("first")

    work = [fail(), forever(), forever()]
    with pytest.raises(ValueError, match="first"):
        await side_by_side(*work, limit=limit)
    assert len(ended) == (2 if limit is None else 1)
    # With the limit the last coroutine never starts, and must not warn that it was never awaited.
    assert [inspect.getcoroutinestate(coroutine) for coroutine in work] == [inspect.CORO_CLOSED] * 3


async def test_a_cancelled_caller_cancels_and_waits_for_all():
    ended = []

    async def slow_to_end():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    caller = asyncio.create_task(side_by_side(slow_to_end(), slow_to_end()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [True, True]


class Connection:
    """Closes when it is collected."""


@pytest.mark.thorough
@pytest.mark.parametrize("last", ["fails", "waits"])
async def test_a_kept_error_keeps_nothing_of_the_cancelled_others(last):
    held = []

    async def waits():
        connection = Connection()
        held.append(weakref.ref(connection))
        await asyncio.Event().wait()

    async def fails():
        while len(held) < 2:
            await asyncio.sleep(0)
        raise ValueError("kept")

    work = [fails(), waits(), waits()] if last == "waits" else [waits(), waits(), fails()]
    with pytest.raises(ValueError, match="kept") as kept:
        await side_by_side(*work)
    await asyncio.sleep(0)  # The loop still calls this task with the result of the last wait.
    gc.collect()
    assert [connection() for connection in held] == [None, None]
    assert kept.value.__traceback__ is not None
