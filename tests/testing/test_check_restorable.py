from __future__ import annotations

import copy
from typing import ClassVar

import pytest

from amc_agents.errors import WorldError
from amc_agents.testing import check_restorable
from amc_agents.testing import checks as sentences


class Numbers:
    """A list in memory, saved in a dictionary of its class."""

    saved: ClassVar[dict[str, list[int]]] = {}

    def __init__(self, numbers=()):
        self.numbers = list(numbers)

    async def fork(self, seed):
        return type(self)(self.numbers)

    async def close(self):
        pass

    async def snapshot(self):
        name = f"{len(self.saved)}-{id(self)}"
        self.saved[name] = list(self.numbers)
        return {"name": name}

    async def restore(self, snapshot):
        if snapshot["name"] not in self.saved:
            raise WorldError("no such snapshot")
        self.numbers = list(self.saved[snapshot["name"]])

    async def release(self, snapshot):
        self.saved.pop(snapshot["name"], None)


async def check(kind):
    await check_restorable(kind, lambda world, number: world.numbers.append(number), lambda world: list(world.numbers))


class NotRestorable:
    async def fork(self, seed):
        return self

    async def close(self):
        pass


class ReferenceOfObjects(Numbers):
    async def snapshot(self):
        return {"name": (1, 2)}


class ChangedBySnapshot(Numbers):
    async def snapshot(self):
        self.numbers = [*self.numbers, 0]
        return await super().snapshot()


class SharesItsState(Numbers):
    async def snapshot(self):
        name = f"{len(self.saved)}-{id(self)}"
        self.saved[name] = self.numbers
        return {"name": name}


class RestoresTheStateItself(Numbers):
    async def restore(self, snapshot):
        await super().restore(snapshot)
        self.numbers = self.saved[snapshot["name"]]


class LostWithItsWorld(Numbers):
    async def snapshot(self):
        self.mine = await super().snapshot()
        return self.mine

    async def close(self):
        if hasattr(self, "mine"):
            await self.release(self.mine)


class ForkForgets(Numbers):
    async def fork(self, seed):
        return type(self)()


class ReleaseOnce(Numbers):
    async def release(self, snapshot):
        del self.saved[snapshot["name"]]


class MissingIsEmpty(Numbers):
    async def restore(self, snapshot):
        self.numbers = copy.copy(self.saved.get(snapshot["name"], []))


class MissingIsAKeyError(Numbers):
    async def restore(self, snapshot):
        self.numbers = copy.copy(self.saved[snapshot["name"]])


async def test_a_world_that_keeps_the_contract_passes_and_leaves_no_snapshot():
    await check(Numbers)
    assert Numbers.saved == {}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (NotRestorable, sentences.IS_RESTORABLE),
        (ReferenceOfObjects, sentences.REFERENCE),
        (ChangedBySnapshot, sentences.NOT_CHANGED),
        (SharesItsState, sentences.RESTORED),
        (RestoresTheStateItself, sentences.RESTORED_AGAIN),
        (LostWithItsWorld, sentences.OUTLIVES),
        (ForkForgets, sentences.FORKS_OF_RESTORED),
        (ReleaseOnce, sentences.RELEASED_TWICE),
        (MissingIsEmpty, sentences.RELEASED),
        (MissingIsAKeyError, sentences.RELEASED),
    ],
)
async def test_a_world_that_breaks_the_contract_is_told_the_sentence(kind, sentence):
    kind.saved = {}
    with pytest.raises(AssertionError) as raised:
        await check(kind)
    assert str(raised.value).startswith(sentence)
