"""Reserve a request that the gateway itself makes under the budget of its caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from amc_agents.budget import Bound, Claim, claimed, spenders
from amc_agents.usage import Usage
from amc_agents_gateway.errors import UpstreamError


class Charge:
    """The reservation of a request."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._settled = False

    def settle(self, usage: Usage) -> None:
        """Charge the reported usage."""
        self._claim.settle(usage)
        self._settled = True

    def fail(self, error: BaseException) -> None:
        """Charge a request that failed or was cancelled, unless its usage is known."""
        if self._settled:
            return
        if isinstance(error, UpstreamError) and not error.sent:
            self._claim.release()
        elif isinstance(error, UpstreamError) and error.status_code is not None:
            self._claim.settle(Usage(calls=1))
        else:
            self._claim.settle(None)  # The upstream may have billed it.


@asynccontextmanager
async def charged(bound: Bound) -> AsyncIterator[Charge]:
    """Reserve a request of a block, which settles it.

    An error that the upstream answered is charged as a call without tokens, and a request that was not sent as nothing.
    After any other error, and after a cancellation, the upper bound is charged.

    Raises:
        BudgetExhausted: the request does not fit any more.
        UnboundedRequest: it has no limit of output tokens.
    """
    charge = Charge(await claimed(bound) if spenders() else Claim())
    try:
        yield charge
    except BaseException as error:
        charge.fail(error)
        raise
