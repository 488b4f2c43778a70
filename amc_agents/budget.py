"""A hard budget of tokens, dollars, calls and seconds, shared by any number of runs, decisions and threads.

Before a request is made, its upper bound (prompt and `max_tokens`) is reserved under each budget of its context;
when it ends, its reported usage replaces the bound. So the sum of what is spent and what may still be spent never
exceeds the limits. A request that fits only if others stay below their bounds waits for them; a request that cannot
fit any more is refused.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amc_agents.context import changed_context, particle_context
from amc_agents.errors import BudgetExhausted, ConfigurationError, UnboundedRequest, amount_text
from amc_agents.prices import Rates, cost
from amc_agents.quoting import quoted
from amc_agents.usage import Usage


class Amounts(NamedTuple):
    """An amount of each limited resource."""

    tokens: float = 0
    dollars: float = 0.0
    calls: float = 0

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum."""
        return Amounts(*(mine + its for mine, its in zip(self, other, strict=True)))

    def minus(self, other: Amounts) -> Amounts:
        """Return the difference."""
        return Amounts(*(mine - its for mine, its in zip(self, other, strict=True)))

    def within(self, limits: Amounts) -> bool:
        """True if no amount exceeds its limit; a rounding error of a dollar amount does not count."""
        return all(mine <= limit or math.isclose(mine, limit) for mine, limit in zip(self, limits, strict=True))


NOTHING = Amounts()


class Bound(NamedTuple):
    """Upper bound of a request's usage."""

    model: str
    """`provider:name`, or the name alone; the key for prices."""
    input_tokens: int
    output_tokens: int | None
    """The request's `max_tokens` times its number of candidates; None: not limited."""
    calls: int = 1


def answer_limit(parameters: Mapping[str, Any], default: int | None = None) -> int | None:
    """Return the most tokens of a request's answer, all candidates together, by the names that providers give it."""
    limits = [limit for name in _LIMITS if type(limit := parameters.get(name)) is int and limit > 0]
    limit = min(limits) if limits else default
    return None if limit is None else limit * (parameters.get("n") or 1)


class Budget:
    """Limits for all requests of the runs, decisions and conversations that it is given to.

        budget = Budget(tokens=200_000, dollars=0.5)
        graph = amc(agent, critic, budget=budget)

    The object counts what is spent, across calls; a new object starts from zero. Thread-safe.

    Args:
        tokens: maximum number of tokens, read and written.
        dollars: maximum cost. Every model then needs a price.
        calls: maximum number of requests; a batch of a local model counts as one call per item.
        seconds: maximum time during which at least one run or decision is in progress.
        prices: dollars by model, as for `amc_agents.prices.cost`; they precede those of the configuration file and of
            the library.

    Raises:
        ConfigurationError: no limit is given, or a limit is not a positive number.
    """

    def __init__(
        self,
        *,
        tokens: int | None = None,
        dollars: float | None = None,
        calls: int | None = None,
        seconds: float | None = None,
        prices: Mapping[str, Rates] | None = None,
    ) -> None:
        self.limits: dict[str, float] = {
            name: limit
            for name, limit in {"tokens": tokens, "dollars": dollars, "calls": calls, "seconds": seconds}.items()
            if limit is not None
        }
        """The given limits by name."""
        if not self.limits:
            raise ConfigurationError("a budget needs a limit: Budget(tokens=, dollars=, calls=, seconds=)")
        for name, limit in self.limits.items():
            if isinstance(limit, bool) or not (limit > 0 and math.isfinite(limit)):
                raise ConfigurationError(f"{name} of a budget must be a positive number, got {quoted(limit)}")
        self.prices = dict(prices or {})
        self._most = Amounts(*(self.limits.get(name, math.inf) for name in Amounts._fields))
        self._lock = threading.Lock()
        self._spent = NOTHING
        self._open: set[Reservation] = set()
        self._waiting: list[_Waiter] = []
        self._purses, self._since, self._seconds = 0, 0.0, 0.0
        self._by_run: dict[str, Amounts] = {}
        """What runs were charged in this process."""

    @property
    def spent(self) -> dict[str, float]:
        """What the limited resources have been charged so far."""
        with self._lock:
            used = {**self._spent._asdict(), "seconds": self._elapsed()}
        return {name: used[name] for name in self.limits}

    @property
    def left(self) -> dict[str, float]:
        """What is left of each limit. Requests in progress are not subtracted."""
        return {name: max(0, self.limits[name] - used) for name, used in self.spent.items()}

    def charge(self, usage: Usage, model: str = "") -> None:
        """Charge usage that was spent elsewhere, such as that of a run before a restart."""
        amounts = self.amounts(usage, model, self.prices)
        with self._lock:
            self._spent = self._spent.plus(amounts)

    def amounts(self, usage: Usage, model: str, prices: Mapping[str, Rates]) -> Amounts:
        """Convert usage to amounts.

        Raises:
            UnboundedRequest: the budget limits dollars, and the model has no price.
        """
        if "dollars" not in self.limits:
            return Amounts(usage.tokens, 0.0, usage.calls)
        priced = cost({"": {model: usage}}, prices)
        if priced.unpriced:
            raise UnboundedRequest(
                f"the budget limits dollars, and the model {quoted(model or '(unnamed)')} has no price: give "
                f"Budget(dollars=..., prices={{{quoted(model)}: Price(input, output)}}) in dollars per million tokens "
                "(0 is allowed), a table [prices] in the configuration, or pip install 'amc-agents[prices]'"
            )
        return Amounts(usage.tokens, priced.total, usage.calls)

    def bound(self, bound: Bound, prices: Mapping[str, Rates]) -> Amounts:
        """Convert the upper bound of a request.

        Raises:
            UnboundedRequest: its output is not limited, or its model has no price.
        """
        if bound.output_tokens is None and not {"tokens", "dollars"}.isdisjoint(self.limits):
            raise UnboundedRequest(
                f"a budget of tokens or dollars needs a limit for each answer, and this request to "
                f"{quoted(bound.model or 'a model')} has no max_tokens: set max_tokens on the model"
            )
        return self.amounts(Usage(bound.calls, bound.input_tokens, bound.output_tokens or 0), bound.model, prices)

    def require_room(self, bound: Bound, prices: Mapping[str, Rates]) -> None:
        """Check that a request would fit if nothing else were spent.

        Raises:
            UnboundedRequest: as `bound`, or the request is larger than the whole budget.
        """
        amounts = self.bound(bound, prices)
        if not amounts.within(self._most):
            needed = {name: most for name, most in amounts._asdict().items() if name in self.limits}
            needs = ", ".join(f"{amount_text(most)} {name}" for name, most in needed.items())
            raise UnboundedRequest(
                f"an answer of {quoted(bound.model or 'a model')} may need {needs}, more than the whole budget "
                f"({', '.join(f'{amount_text(limit)} {name}' for name, limit in self.limits.items())}): lower its "
                "max_tokens, or give a larger Budget"
            )

    def __repr__(self) -> str:
        """Show the limits and what is left."""
        left = self.left
        shown = (f"{amount_text(left[name])} of {amount_text(limit)} {name}" for name, limit in self.limits.items())
        return f"<Budget: {', '.join(shown)} left>"

    def _begin(self) -> None:
        with self._lock:
            self._since = self._since if self._purses else time.monotonic()
            self._purses += 1

    def _end(self, purse: Purse) -> None:
        with self._lock:
            self._seconds, self._purses, self._since = self._elapsed(), self._purses - 1, time.monotonic()
            for reservation in [kept for kept in self._open if kept.purse is purse]:
                self._charge(reservation, reservation.bound)
        self.review()

    def _elapsed(self) -> float:
        return self._seconds + (time.monotonic() - self._since if self._purses else 0.0)

    def _reserved(self) -> Amounts:
        total = NOTHING
        for reservation in self._open:
            total = total.plus(reservation.bound)
        return total

    def _request(self, purse: Purse, who: Any, bound: Amounts, what: Any) -> Future[Reservation]:
        waiter = _Waiter(purse, who, bound, what)
        with self._lock:
            for abandoned in [kept for kept in self._open if kept.what is what and what is not None]:
                # A task makes one request at a time: an earlier request without an end was cancelled.
                self._charge(abandoned, abandoned.bound)
            self._waiting.append(waiter)
        self.review()
        return waiter.future

    def _charge(self, reservation: Reservation, amounts: Amounts) -> None:
        self._open.discard(reservation)
        self._spent = self._spent.minus(reservation.charged).plus(amounts)
        if (run := reservation.purse.run_id) is not None:
            self._by_run[run] = self._by_run.get(run, NOTHING).minus(reservation.charged).plus(amounts)
        reservation.charged = amounts

    def _resume(self, run_id: str, used: Amounts, seconds: float) -> None:
        with self._lock:
            known = self._by_run.get(run_id)
            charged = NOTHING if known is None else known
            missing = Amounts(*(max(0.0, its - ours) for its, ours in zip(used, charged, strict=True)))
            self._spent, self._by_run[run_id] = self._spent.plus(missing), charged.plus(missing)
            self._seconds += seconds if known is None else 0.0

    def settle(self, reservation: Reservation, amounts: Amounts) -> None:
        """Charge a request, in place of its bound."""
        with self._lock:
            self._charge(reservation, amounts)
        self.review()

    def review(self) -> None:
        """Grant the waiting requests that fit, and refuse those that no longer can."""
        answers: list[Callable[[], None]] = []
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                was_parked = waiter.parked
                answer = self._answer(waiter)
                if answer is not None:
                    answers.append(answer)
                    continue
                self._waiting.append(waiter)
                if waiter.parked and not was_parked:
                    answers.append(waiter.purse.on_parked)
        for answer in answers:
            answer()

    def _answer(self, waiter: _Waiter) -> Callable[[], None] | None:
        """Return the answer to a waiting request; None: it waits on."""
        purse, future = waiter.purse, waiter.future
        if future.cancelled():
            return lambda: None
        if purse.ended:
            return self._refusal(waiter)
        if purse.only is not None and waiter.who is not purse.only:
            waiter.parked = True
            return None
        needed = self._spent.plus(waiter.bound).plus(purse.kept_from(waiter.who))
        if not needed.within(self._most):
            waiter.parked = purse.parks(waiter.who)
            return None if waiter.parked else self._refusal(waiter)
        waiter.parked = False
        if not needed.plus(self._reserved()).within(self._most):
            return None
        if not future.set_running_or_notify_cancel():
            return lambda: None
        reservation = Reservation(purse, waiter.bound, waiter.what)
        self._open.add(reservation)
        return lambda: future.set_result(reservation)

    def _refusal(self, waiter: _Waiter) -> Callable[[], None]:
        if not waiter.future.set_running_or_notify_cancel():
            return lambda: None
        used = {name: getattr(self._spent, name) for name in Amounts._fields if name in self.limits}
        needs = {name: getattr(waiter.bound, name) for name in used}
        error = BudgetExhausted(self.limits, used, needs)
        return lambda: waiter.future.set_exception(error)

    def _is_parked(self, purse: Purse, who: Any) -> bool:
        with self._lock:
            return any(
                waiter.parked and waiter.purse is purse and waiter.who is who and not waiter.future.cancelled()
                for waiter in self._waiting
            )


@dataclass(eq=False)
class Reservation:
    """The upper bound of a request in progress."""

    purse: Purse
    bound: Amounts
    what: Any = None
    """The task or thread that makes the request."""
    charged: Amounts = NOTHING

    def settle(self, amounts: Amounts) -> None:
        """Charge the request, in place of its bound. May be called again with a better figure."""
        self.purse.budget.settle(self, amounts)


@dataclass(eq=False)
class _Waiter:
    purse: Purse
    who: Any
    bound: Amounts
    what: Any
    future: Future[Reservation] = field(default_factory=Future)
    parked: bool = False


def _ignore() -> None:
    pass


class Purse:
    """Access to a budget for a run or a decision, from its start to `close`.

    Args:
        budget: the budget.
        prices: prices of the configuration file.
        on_parked: called from any thread when a request is parked.
    """

    def __init__(
        self, budget: Budget, prices: Mapping[str, Rates] | None = None, on_parked: Callable[[], None] = _ignore
    ) -> None:
        self.budget, self.on_parked = budget, on_parked
        self.prices = {**(prices or {}), **budget.prices}
        self.kept = NOTHING
        """Amounts that requests of particles may not use."""
        self.only: Any = None
        """The only particle whose requests are granted; None: all."""
        self.run_id: str | None = None
        """Identifier of the run of particles that spends."""
        self.ended = False
        """Whether every further request is refused."""
        budget._begin()

    def resume(self, run_id: str, usage: Mapping[str, Mapping[str, Usage]], seconds: float) -> None:
        """Charge what a run spent before it was restored, unless it was charged in this process.

        Args:
            run_id: identifier of the run.
            usage: {role: {model: usage}} of the run so far.
            seconds: its duration so far.
        """
        self.run_id, used = run_id, NOTHING
        for models in usage.values():
            for model, spent in models.items():
                used = used.plus(self.budget.amounts(spent, model, self.prices))
        self.budget._resume(run_id, used, seconds)

    def bound_of(self, bound: Bound) -> Amounts:
        """Convert the upper bound of a request.

        Raises:
            UnboundedRequest: its output is not limited, or its model has no price.
        """
        return self.budget.bound(bound, self.prices)

    def request(self, bound: Bound, who: Any = None, what: Any = None) -> Future[Reservation]:
        """Ask for a reservation. The future fails with `BudgetExhausted`; a cancelled future is never granted."""
        return self.budget._request(self, who, self.bound_of(bound), what)

    def kept_from(self, who: Any) -> Amounts:
        """Return the amounts that a request may not use: the reserve, for all but the chosen particle."""
        return NOTHING if who is not None and who is self.only else self.kept

    def parks(self, who: Any) -> bool:
        """True if a request that does not fit waits for the run's decision, as those of particles do."""
        return who is not None and who is not self.only

    def is_parked(self, who: Any) -> bool:
        """True if a request of a particle waits for the run's decision."""
        return self.budget._is_parked(self, who)

    def keep(self, share: float) -> None:
        """Keep a share of what is left from the particles."""
        spent = self.budget._spent
        limits = self.budget._most
        self.kept = Amounts(
            *(share * (most - used) if math.isfinite(most) else 0.0 for most, used in zip(limits, spent, strict=True))
        )

    def close(self) -> None:
        """Refuse further requests, and charge the bounds of requests without an end, which may have been billed."""
        if not self.ended:
            self.ended = True
            self.budget._end(self)


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
"""Names of providers for the maximum number of tokens of an answer."""


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
