"""The door of a particle, alone."""

from contextvars import copy_context

import pytest
from langgraph.errors import GraphInterrupt

from amc_agents.runtime.door import Door


def visit(door, call_id="1"):
    with door.visit("refund", "commit", dict, call_id) as arrived:
        arrived.result = "paid"
    return arrived


async def test_a_late_call_of_an_interrupted_node_does_not_run_after_the_door_was_opened():
    """It waited for a thread while its node was interrupted, and arrives when the resumed node makes the call."""
    door = Door()
    door.begin_attempt()
    late = copy_context()
    with pytest.raises(GraphInterrupt):
        visit(door)
    await door.end_attempt()
    [(key, call)] = door.waiting.items()
    door.opened[key] = call
    with pytest.raises(GraphInterrupt):  # Between the attempts, too.
        late.run(visit, door)
    door.begin_attempt()
    with pytest.raises(GraphInterrupt):
        late.run(visit, door)
    assert visit(door).result == "paid"
    assert [outcome.status for outcome in door.outcomes.values()] == ["ran"]


async def test_a_commit_that_was_let_through_calls_further_tools_freely():
    """They belong to the one call that was admitted: none waits, and none is recorded for itself."""
    door = Door()
    door.begin_attempt()
    with pytest.raises(GraphInterrupt):
        visit(door)
    await door.end_attempt()
    door.opened.update(door.waiting)
    door.begin_attempt()
    with door.visit("refund", "commit", dict, "1") as outer:
        assert visit(door, "2").result == "paid"
        outer.result = "paid twice"
    assert [key.call_id for key in door.outcomes] == [key.call_id for key in door.results] == ["1"]
    with pytest.raises(GraphInterrupt):
        visit(door, "3")
