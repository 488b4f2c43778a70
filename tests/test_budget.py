"""The arithmetic of a budget: what is reserved, charged, refused and parked."""

from __future__ import annotations

import asyncio
import copy
import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.budget import (
    NOTHING,
    Amounts,
    Bound,
    Budget,
    Purse,
    charge_in_thread,
    claim,
    claimed,
    claimed_in_thread,
    paying,
)
from amc_agents.errors import BudgetExhausted, ConfigurationError, UnboundedRequest
from amc_agents.prices import Price
from amc_agents.usage import Usage


def request(purse, tokens, who=None, what=None):
    return purse.request(Bound("model", tokens, 0), who, what)


@pytest.mark.parametrize("limits", [{}, {"tokens": 0}, {"dollars": -1.0}, {"seconds": math.inf}, {"calls": True}])
def test_a_limit_is_a_positive_number(limits):
    with pytest.raises(ConfigurationError, match="budget"):
        Budget(**limits)


def test_it_states_what_is_left():
    budget = Budget(tokens=1000, dollars=0.5, calls=10, prices={"model": Price(100.0, 200.0)})
    purse = Purse(budget)
    request(purse, 400).result().settle(budget.amounts(Usage(1, 300, 50), "model", budget.prices))
    assert budget.spent == {"tokens": 350, "dollars": 0.04, "calls": 1}
    assert budget.left == {"tokens": 650, "dollars": 0.46, "calls": 9}
    assert repr(budget) == "<Budget: 650 of 1,000 tokens, 0.46 of 0.5 dollars, 9 of 10 calls left>"


def test_a_request_is_reserved_before_it_is_made_and_settled_with_its_usage():
    purse = Purse(Budget(tokens=100))
    first = request(purse, 60)
    second = request(purse, 50)
    assert first.done()
    assert not second.done(), "the first request may still need its whole bound"
    first.result().settle(Amounts(tokens=20))
    assert second.done()
    third = request(purse, 31)
    second.result().settle(Amounts(tokens=50))
    with pytest.raises(BudgetExhausted, match=r"70 of 100 tokens are spent, and the next request may need 31 tokens"):
        third.result(timeout=1)


def test_an_exact_fit_is_granted():
    budget = Budget(dollars=0.3, prices={"model": Price(100_000.0, 0.0)})
    purse = Purse(budget)
    for _ in range(3):
        request(purse, 1).result(timeout=1).settle(Amounts(dollars=0.1))
    assert budget.left["dollars"] == pytest.approx(0.0, abs=1e-12)


def test_a_request_needs_a_bound_where_tokens_or_dollars_are_limited():
    open_ended = Bound("openai:model", 10, None)
    with pytest.raises(UnboundedRequest, match="has no max_tokens: set max_tokens on the model"):
        Purse(Budget(tokens=100)).request(open_ended)
    with pytest.raises(UnboundedRequest, match="max_tokens"):
        Purse(Budget(dollars=1.0)).request(open_ended)
    assert Purse(Budget(calls=1)).request(open_ended).result().bound == Amounts(10, 0.0, 1)


def test_dollars_need_a_price():
    with pytest.raises(UnboundedRequest, match="the model 'own' has no price"):
        Purse(Budget(dollars=1.0)).request(Bound("own", 1, 1))
    given = Purse(Budget(dollars=1.0), {"own": Price(1.0, 1.0)}).request(Bound("own", 500_000, 0))
    assert given.result().bound.dollars == 0.5


def test_usage_without_a_report_is_charged_at_the_bound():
    budget = Budget(tokens=100)

    async def ask():
        with paying(Purse(budget)):
            held = await claimed(Bound("model", 30, 10))
            held.settle(Usage(calls=1, missing=1))

    asyncio.run(ask())
    assert budget.spent == {"tokens": 40}


async def test_an_error_charges_the_bound_and_a_cancelled_wait_nothing():
    budget = Budget(tokens=100)
    with paying(Purse(budget)):
        with pytest.raises(ZeroDivisionError):
            async with claim([Bound("model", 60, 0)]):
                raise ZeroDivisionError
        held = await claimed(Bound("model", 30, 0))
        waiting = asyncio.ensure_future(claimed(Bound("model", 20, 0)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        held.settle(Usage(1, 10, 0))
    assert budget.spent == {"tokens": 70}


def test_a_local_computation_is_charged_before_it_starts():
    budget = Budget(tokens=100)
    charge_in_thread("local", Usage(1, 1000, 0))
    with paying(Purse(budget)):
        charge_in_thread("local", Usage(1, 60, 0))
        with pytest.raises(BudgetExhausted):
            charge_in_thread("local", Usage(1, 60, 0))
    assert budget.spent == {"tokens": 60}


def test_the_end_of_a_purse_charges_what_never_ended_and_a_late_report_corrects_it():
    budget = Budget(tokens=100)
    purse = Purse(budget)
    reservation = request(purse, 60).result()
    waiting = request(purse, 60)
    purse.close()
    assert budget.spent == {"tokens": 60}
    with pytest.raises(BudgetExhausted):
        waiting.result(timeout=1)
    reservation.settle(Amounts(tokens=5))
    assert budget.spent == {"tokens": 5}


def test_a_cancelled_request_of_the_same_task_does_not_hold_its_bound_forever():
    purse, task = Purse(Budget(tokens=100)), object()
    request(purse, 50, what=task)
    assert request(purse, 50, what=task).done()
    with pytest.raises(BudgetExhausted):
        request(purse, 51, what=object()).result(timeout=1)


def test_two_budgets_both_hold():
    loose, tight = Budget(tokens=100), Budget(calls=1)
    with paying(Purse(loose)), paying(Purse(tight)):
        claimed_in_thread(Bound("model", 10, 0)).settle(Usage(1, 10, 0))
        with pytest.raises(BudgetExhausted, match="1 of 1 calls"):
            claimed_in_thread(Bound("model", 10, 0))
    assert loose.spent == {"tokens": 10}, "a request that the second budget refuses costs the first nothing"


def test_usage_of_an_earlier_process_is_charged():
    budget = Budget(tokens=100)
    budget.charge(Usage(3, 50, 10))
    assert budget.left == {"tokens": 40}


def test_seconds_count_while_something_runs():
    budget = Budget(seconds=60)
    time.sleep(0.01)
    assert budget.spent["seconds"] == 0
    first, second = Purse(budget), Purse(budget)
    time.sleep(0.01)
    first.close()
    time.sleep(0.01)
    second.close()
    used = budget.spent["seconds"]
    assert 0.02 <= used < 1
    time.sleep(0.01)
    assert budget.spent["seconds"] == used


def test_a_budget_is_the_same_object_in_a_copy_of_what_holds_it():
    budget = Budget(tokens=10)
    assert copy.copy({"budget": budget})["budget"] is budget


# --- particles ----------------------------------------------------------------------------------------------


def test_particles_leave_the_reserve_and_are_parked():
    parked = []
    budget = Budget(tokens=100)
    purse = Purse(budget, on_parked=lambda: parked.append(1))
    purse.keep(0.5)
    request(purse, 40, "a").result().settle(Amounts(tokens=40))
    waiting = request(purse, 20, "b")
    assert purse.is_parked("b")
    assert not purse.is_parked("a")
    assert parked == [1]
    other = request(purse, 20, "a")
    purse.only = "a"
    budget.review()
    assert other.done()
    assert not waiting.done(), "only the chosen particle may use the reserve"
    purse.only, purse.kept = None, NOTHING
    budget.review()
    assert waiting.done()


def test_the_chosen_particle_is_refused_at_the_limit():
    purse = Purse(Budget(tokens=100))
    purse.only = "a"
    with pytest.raises(BudgetExhausted):
        request(purse, 101, "a").result(timeout=1)


@pytest.mark.thorough  # threads; quick: the sequences of requests in this file
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1)), min_size=1, max_size=60),
    st.integers(20, 200),
    st.integers(1, 8),
)
def test_concurrent_requests_never_exceed_a_limit(requests, limit, n_threads):
    budget = Budget(tokens=limit)
    purse, lock, peak = Purse(budget), threading.Lock(), [0.0]
    left = list(requests)

    def work(seed):
        rng = np.random.default_rng(seed)
        while True:
            with lock:
                if not left:
                    return
                bound, share = left.pop()
            try:
                reservation = request(purse, bound, what=object()).result(timeout=5)
            except BudgetExhausted:
                continue
            with budget._lock:
                peak[0] = max(peak[0], budget._spent.tokens + budget._reserved().tokens)
            if rng.random() < 0.3:
                time.sleep(rng.random() * 1e-4)
            reservation.settle(Amounts(tokens=int(bound * share)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peak[0] <= limit
    assert budget.spent["tokens"] <= limit
    assert not budget._open
    assert not budget._waiting
    served = [int(bound * share) for bound, share in requests]
    if sum(bound for bound, _ in requests) <= limit:
        assert budget.spent["tokens"] == sum(served), "whatever fits is granted"
