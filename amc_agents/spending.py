"""Reserve requests under the budgets of the current context, however the requests are made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from amc_agents.budget import NOTHING, Bound, Purse, Reservation
from amc_agents.context import changed_context, particle_context
from amc_agents.errors import BudgetExhausted
from amc_agents.usage import Usage


class Spender(NamedTuple):
    """A purse, and the particle that spends from it."""

    purse: Purse
    who: Any = None
    """The particle; None outside particles."""


def spenders() -> tuple[Spender, ...]:
    """Return the purses of this context, the outermost first."""
    return particle_context().spenders


@contextmanager
def paying(purse: Purse) -> Iterator[None]:
    """Add an open purse to the context of a block."""
    with changed_context(spenders=(*spenders(), Spender(purse))):
        yield


class Claim:
    """The reservations of a request, one per budget."""

    def __init__(self) -> None:
        self._held: list[tuple[Reservation, str]] = []

    def add(self, reservation: Reservation, model: str) -> None:
        """Add the reservation of a budget."""
        self._held.append((reservation, model))

    def settle(self, usage: Usage | None) -> None:
        """Charge the reported usage; None, and usage with missing reports, charge the upper bound."""
        for reservation, model in self._held:
            purse = reservation.purse
            unknown = usage is None or usage.missing
            reservation.settle(
                reservation.bound if unknown or usage is None else purse.budget.amounts(usage, model, purse.prices)
            )

    def release(self) -> None:
        """Charge nothing: the request was not made."""
        for reservation, _ in self._held:
            reservation.settle(NOTHING)


async def claimed(bound: Bound) -> Claim:
    """Reserve a request under the budgets of this context, and wait until it fits.

    Raises:
        BudgetExhausted: it does not fit any more.
        UnboundedRequest: it has no upper bound.
    """
    claim, what = Claim(), asyncio.current_task()
    try:
        for purse, who in spenders():
            future = purse.request(bound, who, what)
            try:
                claim.add(await asyncio.wrap_future(future), bound.model)
            except asyncio.CancelledError:
                _give_back(future)
                raise
    except BaseException:
        claim.release()
        raise
    return claim


def claimed_in_thread(bound: Bound, *, may_wait: bool = True) -> Claim:
    """Like `claimed`, for sync requests. Without `may_wait`, a request that would have to wait is refused."""
    claim = Claim()
    try:
        for purse, who in spenders():
            future = purse.request(bound, who, threading.current_thread())
            if not may_wait and not future.done() and future.cancel():
                raise BudgetExhausted(purse.budget.limits, purse.budget.spent)
            claim.add(future.result(), bound.model)
    except BaseException:
        claim.release()
        raise
    return claim


@asynccontextmanager
async def claim(bounds: Sequence[Bound]) -> AsyncIterator[Claim]:
    """Reserve a request of a block, which must `settle` it; an error charges the upper bound.

    Args:
        bounds: the request's upper bound, as a sequence of at most one; empty: a request without cost.
    """
    if not bounds or not spenders():
        yield Claim()
        return
    held = await claimed(bounds[0])
    try:
        yield held
    except BaseException:
        held.settle(None)
        raise


def charge_in_thread(model: str, usage: Usage) -> None:
    """Charge a local computation, whose usage is known before it starts. Raises as `claimed`."""
    if spenders():
        claimed_in_thread(Bound(model, usage.input_tokens, usage.output_tokens, usage.calls)).settle(usage)


def _give_back(future: Future[Reservation]) -> None:
    """Release a reservation that was granted while its waiter was cancelled."""
    if future.done() and not future.cancelled() and future.exception() is None:
        future.result().settle(NOTHING)
