"""Faults of servers: each has an outcome by name, written in `outcomes`, and leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from amc_agents.concurrency import gather
from amc_agents.concurrency.background import background_loop
from amc_agents.critics.server import client
from amc_agents.errors import AmcError
from amc_agents.runtime.metering import PolicyMeter, counting_requests
from amc_agents.usage import Meter, metering
from tests.critics.value.fake_vllm import folder
from tests.faults.leftovers import alone, nothing_left
from tests.faults.outcomes import DEGRADED, LOST_ONE, RETRIED, WAITED, Case, cases
from tests.faults.surfaces import KEY, WORLD, Limits, N, Seen, Surface, surfaces
from tests.faults.upstream import CHAT, upstream
from tests.faults.wire import FOREVER, GZIP, LATE, TOO_MANY, Wire, wire

__all__ = ["folder"]


@pytest.fixture(scope="module")
def methods(folder) -> dict[str, tuple[Surface, Seen]]:
    """Each method, and what it gives without a fault."""
    background_loop(1)  # Serves the process until its end.
    found = {}
    for surface in surfaces(folder):
        with wire(upstream(surface.talk)) as proxy:
            found[surface.name] = surface, alone(surface.use(proxy, Limits(), "raise"))
    return found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    """Retries follow at once, or after the time that the server asks for."""
    monkeypatch.setattr(client, "_pause", lambda state: state.outcome.exception().retry_after or 0.0)
    monkeypatch.setattr(gather, "_FIRST_PAUSE_S", 0.001)


def happened(case: Case, surface: Surface, proxy: Wire, right: Seen) -> tuple[str, Seen | AmcError]:
    """The outcome's name, and what it is read from."""
    try:
        seen = alone(surface.use(proxy, case.limits, case.on_error))
    except AmcError as error:
        return f"refused: {type(error).__name__}", error
    if seen.facts == right.facts:
        return WAITED if case.fault in LATE else RETRIED, seen
    said = " ".join(set(seen.notes) - set(right.notes))
    if "critic failed" in said or "nothing was judged" in said or not said:
        return DEGRADED if said else "silent", seen
    return LOST_ONE, seen


ALL = list(cases())
# Estimators are asked so often that unpacking a bomb each time takes most of a minute.
SLOW = [
    case for case in ALL if case.fault.patience or (case.surface.startswith(("PSRL", "IDS")) and case.fault in GZIP)
]
QUICK = [case for number, case in enumerate(ALL) if number % 37 == 0 and case not in SLOW]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in QUICK else pytest.mark.thorough) for case in ALL], ids=str
)
def test_a_fault_has_the_outcome_of_the_table(case, methods, monkeypatch):
    if case.times == FOREVER:
        monkeypatch.setattr(gather, "PATIENCE_S", 0.02)
    surface, right = methods[case.surface]
    meter = Meter()
    with nothing_left(), wire(upstream(surface.talk)) as proxy, recording(surface, meter):
        proxy.broken(surface.path, case.fault, first=surface.first, last=surface.first + case.times - 1)
        outcome, seen = happened(case, surface, proxy, right)
    assert outcome == case.outcome, seen
    if isinstance(seen, AmcError):
        checked_message(str(seen))
        check_paid(case, surface, proxy, meter)
        return
    for note in seen.notes:
        assert KEY[:12] not in note
    if outcome == DEGRADED and case.surface.startswith("AMC"):
        # The first point's request is the broken one: no value stands for a critic that failed.
        assert np.isnan(seen.facts[0][0][0]).all()
    check_calls(case, surface, proxy, seen, outcome)


@contextmanager
def recording(surface: Surface, meter: Meter) -> Iterator[None]:
    """Record the usage of every role; that of a policy only where its server is behind the proxy."""
    policy = surface.name.endswith("policy")
    with metering(meter), counting_requests(PolicyMeter(meter)) if policy else nullcontext():
        yield


def paid_and_asked(surface: Surface, meter: Meter, proxy: Wire) -> tuple[int, int]:
    """The recorded calls of the roles whose server is behind the proxy, and the requests that it received."""
    calls = sum(usage.calls for role, usage in meter.read().items() if role not in surface.elsewhere)
    return calls, sum(exchange.path not in surface.connecting for exchange in proxy.log)


def check_paid(case: Case, surface: Surface, proxy: Wire, meter: Meter) -> None:
    """A call that was refused has its price, too: each request is counted once, also if it failed or was cancelled."""
    paid, asked = paid_and_asked(surface, meter, proxy)
    if surface.path == WORLD or surface.name.startswith("train"):
        assert paid == 0  # A training that failed has no card, which would report it.
    elif case.fault in TOO_MANY and not surface.name.endswith("policy"):
        assert 0 < paid <= asked  # The client repeated it until it lost patience.
    elif not case.fault.patience:
        # LangChain does not say whether a call that another one's failure cancelled had been sent by then: it counts.
        assert asked <= paid <= asked + (N if surface.path == CHAT else 0)


def check_calls(case: Case, surface: Surface, proxy: Wire, seen: Seen, outcome: str) -> None:
    """Each request is counted once, however often a critic's client repeated it; a policy counts every attempt."""
    asked = [exchange for exchange in proxy.log if exchange.path not in surface.connecting]
    again = [exchange for exchange in asked if exchange.fault and case.repeated and outcome == RETRIED]
    if outcome == DEGRADED and surface.path == CHAT:
        # A judge's call that was given up counts, whether its thread has sent it by then or not.
        assert seen.calls <= len(asked) + N
        assert case.repeated or len(asked) <= seen.calls
    elif not case.fault.patience:  # On a slow machine, right answers come too late for so short a limit, too.
        assert seen.calls == len(asked) - (0 if surface.name.endswith("policy") else len(again))


def checked_message(message: str) -> None:
    assert len(message) <= 400
    assert message.isprintable()
    assert KEY[:12] not in message
    assert REMEDY.search(message), message


REMEDY = re.compile(
    r"\b(fix|use|set|see|give|check|raise|lower|choose|name|start|serve|allow|turn|wait|free|create|restore|remove|grant|"
    r"correct|install|expected|is (it|the|this))\b",
    re.IGNORECASE,
)
"""A word of advice."""
