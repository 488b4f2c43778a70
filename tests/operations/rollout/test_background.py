import asyncio

import pytest

from amc_agents.operations.rollout import shadow_search
from amc_agents.operations.rollout.shadow_search import Gate


@pytest.fixture
def endless_patience(monkeypatch):
    monkeypatch.setattr(shadow_search, "PATIENCE_S", float("inf"))


async def test_a_node_waits_for_the_calls_in_progress(endless_patience):
    gate = Gate()
    with gate.call(), gate.call():
        waiting = [asyncio.create_task(gate.give_way()) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)


async def test_the_nodes_start_in_turns(endless_patience):
    gate, loop = Gate(), asyncio.get_running_loop()
    started = []

    async def node():
        await gate.give_way()
        started.append(loop.time())

    begun = loop.time()
    await asyncio.gather(*(node() for _ in range(5)))
    assert started[-1] - begun >= 4 * shadow_search.TURN_S - 1e-3


async def test_calls_without_a_pause_do_not_hold_a_search_for_ever(monkeypatch):
    monkeypatch.setattr(shadow_search, "PATIENCE_S", 0.0)
    gate = Gate()
    with gate.call():
        await gate.give_way()
