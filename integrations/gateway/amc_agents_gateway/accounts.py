"""Hard budgets of the keys, which outlive the process.

Each key with a budget has an `amc_agents.budget.Budget`, from which every request to a policy or a critic is reserved
before it is made. The sums go to the ledger, a JSON file that is replaced atomically.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from amc_agents.budget import NOTHING, Amounts, Bound, Budget, Claim, claimed, spenders
from amc_agents.concurrency.gather import to_its_end
from amc_agents.errors import AmcError, BudgetExhausted, ConfigurationError, amount_text
from amc_agents.files import replace_file, sole_user
from amc_agents.prices import Rates
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.usage import Usage
from amc_agents_gateway.config import BudgetTable
from amc_agents_gateway.errors import QUOTA, ApiError, UpstreamError


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


_log = logging.getLogger(__name__)
_PERIODS = {"total": "", "day": "%Y-%m-%d", "month": "%Y-%m"}
_PERIOD = re.compile(r"(\d{4}-\d{2}(-\d{2})?)?")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(eq=False)
class Account:
    """What a key spent in a period."""

    period: str
    """The day or the month; empty: the period has no end."""
    before: Amounts
    """Spent before this process started."""
    budget: Budget | None
    """What is left, for this process; None: nothing."""
    limits: Mapping[str, float]

    @property
    def spent(self) -> Amounts:
        """Spent in the period; only resources with a limit are counted."""
        return self.before if self.budget is None else self.before.plus(Amounts(**self.budget.spent))


@dataclass
class Accounts:
    """The accounts of all keys with budgets.

    Args:
        tables: budgets by key.
        prices: dollars per million tokens.
        ledger: the file; None: sums are lost when the process ends.
        now: current time in UTC, which determines the period.
    """

    tables: Mapping[str, BudgetTable]
    prices: Mapping[str, Rates]
    ledger: Path | None = None
    now: Callable[[], datetime] = utc_now
    _open: dict[str, Account] = field(default_factory=dict)
    _stored: dict[str, Any] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def spending(self, key: str) -> Iterator[None]:
        """Reserve all requests inside the block from the key's budget.

        Raises:
            ApiError: 429 (insufficient_quota); the budget does not allow the request.
        """
        if key not in self.tables:
            yield
            return
        account = self.account(key)
        if account.budget is None or min(account.budget.left.values()) <= 0:
            raise _exhausted(account, self.tables[key].period)
        try:
            with bounded(account.budget, self.prices):
                yield
        except BudgetExhausted as error:
            raise _exhausted(account, self.tables[key].period, error.needed) from error
        finally:
            self._changed.set()

    def account(self, key: str) -> Account:
        """Return the key's account of the current period."""
        table = self.tables[key]
        period = self.now().strftime(_PERIODS[table.period])
        known = self._open.get(key)
        # A clock that goes back does not start a budget anew.
        if known is None or known.period < period:
            self._open[key] = known = self._opened(key, table, period)
        return known

    def _opened(self, key: str, table: BudgetTable, period: str) -> Account:
        row = self._stored.get(key)
        continues = row is not None and len(row["period"]) == len(period) and row["period"] >= period
        period, before = (row["period"], Amounts(**row["spent"])) if row and continues else (period, NOTHING)
        limits = table.model_dump(exclude_none=True, exclude={"period"})
        left: dict[str, Any] = {name: limit - getattr(before, name) for name, limit in limits.items()}
        budget = Budget(**left, prices=self.prices) if min(left.values()) > 0 else None
        return Account(period, before, budget, limits)

    @asynccontextmanager
    async def kept(self) -> Any:
        """Read the ledger, and keep it up to date while the block runs.

        Raises:
            ConfigurationError: another process uses the ledger, or it cannot be read.
        """
        if self.ledger is None:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(sole_user(self.ledger.with_name(f"{self.ledger.name}.lock"), doing="amc-gateway"))
            self._stored = _read(self.ledger)
            writer = asyncio.create_task(self._write_changes())
            try:
                yield
            finally:
                writer.cancel()
                with suppress(asyncio.CancelledError):
                    await writer
                self._write(self._rows())

    async def _write_changes(self) -> None:
        """Write the ledger after requests; those that end during a write share the next write."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await to_its_end(asyncio.to_thread(self._write, self._rows()))
            except AmcError as error:
                _log.error("budgets hold, but a restart would forget what was spent since the last write: %s", error)

    def _rows(self) -> dict[str, Any]:
        rows = {
            key: {"period": account.period, "spent": account.spent._asdict()} for key, account in self._open.items()
        }
        return {**self._stored, **rows}

    def _write(self, rows: Mapping[str, Any]) -> None:
        assert self.ledger is not None
        replace_file(self.ledger, json.dumps({"version": 1, "keys": rows}, indent=1))


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        rows: dict[str, Any] = plain["keys"]
        for row in rows.values():
            Amounts(**row["spent"])
            if not _PERIOD.fullmatch(row["period"]) or not all(map(_is_amount, row["spent"].values())):
                raise ValueError(f"expected a period and amounts from 0, got {row}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"the ledger {path} cannot be read ({type(error).__name__}): restore it, or delete it to start all "
            "budgets anew"
        ) from error
    return rows


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _exhausted(account: Account, period: str, needed: Mapping[str, float] | None = None) -> ApiError:
    spent = account.spent._asdict()
    used = ", ".join(
        f"{amount_text(spent[name])} of {amount_text(limit)} {name}" for name, limit in account.limits.items()
    )
    needs = ", ".join(f"{amount_text(amount)} {name}" for name, amount in (needed or {}).items())
    message = f"your key's budget does not allow the request: {used} are spent"
    message += f", and a next call to a model may need {needs}: lower max_tokens." if needs else "."
    message += "" if period == "total" else f" The budget starts anew with the next {period} (UTC)."
    return ApiError(429, message, type=QUOTA, code=QUOTA)
