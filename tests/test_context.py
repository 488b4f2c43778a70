from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from amc_agents.context import change_context, changed_context, particle_context


def test_a_block_restores_its_own_fields_and_leaves_the_others():
    def code():
        with changed_context(world="inner"):
            change_context(visit="later")
            assert particle_context().world == "inner"
        return particle_context().world, particle_context().visit

    assert copy_context().run(code) == (None, "later")
    assert particle_context().visit is None


def test_a_block_that_fails_restores_its_fields():
    with pytest.raises(ValueError, match="failed"), changed_context(world="inner"):
        raise ValueError("failed")
    assert particle_context().world is None


async def test_tasks_and_threads_inherit_the_context_and_change_their_own():
    async def task():
        change_context(world="task")

    with changed_context(world="outer"):
        await asyncio.create_task(task())
        assert particle_context().world == "outer"
        assert await asyncio.to_thread(lambda: particle_context().world) == "outer"


def test_an_unknown_field_is_an_error():
    with pytest.raises(TypeError, match="wrold"):
        change_context(wrold=None)
