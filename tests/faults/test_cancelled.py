"""A task that is cancelled while a server is asked: nothing is left open, and the next call is as ever."""

from __future__ import annotations

import asyncio

import pytest

from amc_agents.usage import Meter
from tests.faults.leftovers import alone, nothing_left
from tests.faults.surfaces import WORLD, Limits
from tests.faults.test_wire import _no_pauses, folder, methods, paid_and_asked, recording
from tests.faults.upstream import upstream
from tests.faults.wire import Fault, wire

__all__ = ["_no_pauses", "folder", "methods"]
# A judge's thread ends with its client's time limit.
LIMITS = Limits(timeout=0.5)


async def cancelled(surface, proxy, number):
    """Cancel the call when its server receives the n-th request, which is never answered."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(surface.use(proxy, LIMITS, "raise"))

    async def send(connection, right):
        loop.call_soon_threadsafe(task.cancel)
        await asyncio.Event().wait()

    proxy.broken(surface.path, Fault("cancelled", send), first=number)
    with pytest.raises(asyncio.CancelledError):
        await task


NAMES = (
    "AMC, `vllm:`", "AMC, `classify:`", "AMC, `judge:`", "AMC, policy", "LAC, `verdict:` (logits)",
    "LAC, `verdict:` (top k)", "PNLC, embeddings", "AMC, world server", "collect, policy", "bench, `vllm:`",
    "PSRL, roles", "IDS, estimators",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("later", [False, True], ids=["first request", "later request"])
@pytest.mark.parametrize("name", NAMES)
def test_a_cancelled_call_leaves_nothing(name, later, methods):
    surface, right = methods[name]
    meter = Meter()
    with nothing_left(), wire(upstream(surface.talk)) as proxy, recording(surface, meter):
        alone(cancelled(surface, proxy, surface.first if later else 0))
    paid, asked = paid_and_asked(surface, meter, proxy)
    # A request that was cancelled while it connected is counted, although its server saw nothing of it.
    assert paid == 0 if surface.path == WORLD else asked <= paid <= right.calls
    with nothing_left(), wire(upstream(surface.talk)) as proxy:
        assert alone(surface.use(proxy, Limits(), "raise")).facts == right.facts
