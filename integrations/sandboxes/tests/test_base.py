"""What all sandboxes share, without a vendor's SDK."""

from __future__ import annotations

import pytest
from amc_agents_sandboxes.base import SandboxWorld

from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.types import Forkable


class InMemory(SandboxWorld):
    """A sandbox is a list of what was done to it."""

    async def _fork(self, sandbox):
        if "full" in sandbox:
            raise OSError("no space left")
        return [*sandbox, "forked"]

    async def _delete(self, sandbox):
        sandbox.append("deleted")


async def test_a_fork_is_a_world_of_the_same_kind_that_owns_its_own_sandbox():
    world = InMemory(["made"])
    twin = await world.fork(1)
    await twin.close()
    assert isinstance(twin, InMemory)
    assert isinstance(world, Forkable)
    assert world.sandbox == ["made"]


async def test_an_error_of_the_vendor_is_a_fork_error_with_its_cause():
    with pytest.raises(ForkError, match="InMemory could not fork: OSError: no space left") as refused:
        await InMemory(["full"]).fork(1)
    assert isinstance(refused.value.__cause__, OSError)


async def test_a_closed_world_deletes_its_sandbox_once_and_refuses_further_use():
    sandbox = []
    world = InMemory(sandbox)
    await world.close()
    await world.close()
    assert sandbox == ["deleted"]
    with pytest.raises(EnvironmentStateError, match="InMemory is closed"):
        await world.fork(1)
