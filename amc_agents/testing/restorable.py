"""A check of worlds against the contract of `Restorable`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from amc_agents.errors import WorldError
from amc_agents.quoting import quoted
from amc_agents.types import Restorable

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
