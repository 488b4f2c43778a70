"""Requests of a role: each that a server may have received is counted once, whatever became of it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from functools import partial

import pytest
from langchain_core.messages import AIMessage

from amc_agents.budget import Budget
from amc_agents.concurrency import gather
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import UnboundedRequest
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.runtime.inner_calls import role_answers
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.usage import Meter, Usage, metering

MISSING = Usage(calls=1, missing=1)
BOTH_WAYS = pytest.mark.parametrize(
    "run", [asyncio.run, partial(run_in_background, n_workers=1)], ids=["async client", "sync client"]
)


class Named(ScriptedChatModel):
    """A model with a name."""

    model_name: str = "small"


class Refused(Exception):
    """An error of a client, as after HTTP 429."""

    status_code = 429


def answered(messages):
    return AIMessage("yes", usage_metadata={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
                     response_metadata={"model_name": "small"})  # fmt: skip


def counted(respond, run, prompts=("?",), error=None):
    """Usage by role and model after a role was asked."""
    meter = Meter()

    async def asked():
        with metering(meter):
            await role_answers(Named(respond=respond), "updater")(prompts)

    with nullcontext() if error is None else pytest.raises(error):
        run(asked())
    return meter.by_model()


@BOTH_WAYS
def test_an_answer_is_counted_as_it_reports(run):
    assert counted(answered, run) == {"updater": {"small": Usage(1, 5, 2)}}


@BOTH_WAYS
def test_a_failed_request_counts_as_a_call_without_a_report(run):
    assert counted(lambda messages: ConnectionError("lost"), run, error=ConnectionError) == {
        "updater": {"small": MISSING}
    }


@BOTH_WAYS
def test_a_request_that_is_refused_and_repeated_counts_once(run, monkeypatch):
    monkeypatch.setattr(gather, "_FIRST_PAUSE_S", 0.001)
    answers = iter([Refused("later"), Refused("later"), None])
    assert counted(lambda messages: next(answers) or answered(messages), run) == {"updater": {"small": Usage(1, 5, 2)}}


@BOTH_WAYS
def test_a_request_that_is_cancelled_in_flight_counts(run):
    """The first fails once the second is in flight, which is then cancelled."""
    in_flight, failed = threading.Event(), threading.Event()

    class Slow(Named):
        async def _agenerate(self, messages, *arguments, **options):
            return await asyncio.to_thread(self._result, messages)

    def respond(messages):
        if messages[-1].text == "first":
            assert in_flight.wait(10)
            return ConnectionError("lost")
        in_flight.set()
        assert failed.wait(10)
        return answered(messages)

    meter = Meter()

    async def asked():
        with metering(meter):
            try:
                await role_answers(Slow(respond=respond), "updater")(["first", "second"])
            finally:
                failed.set()

    with pytest.raises(ConnectionError):
        run(asked())
    assert meter.read() == {"updater": Usage(calls=2, missing=2)}


@BOTH_WAYS
def test_a_request_that_is_cancelled_before_it_was_sent_does_not_count(run):
    gate = gather.RateGate()
    gate.close(60.0)

    async def asked():
        work = role_answers(Named(respond=answered), "updater")(["?"])
        with metering(meter), gather.gated(gate):
            task = asyncio.ensure_future(work)
            for _ in range(5):  # until it waits at the gate
                await asyncio.sleep(0)
            task.cancel()
            await task

    meter = Meter()
    with pytest.raises(asyncio.CancelledError):
        run(asked())
    assert meter.read() == {}


def test_a_request_that_the_budget_refuses_is_not_counted():
    meter = Meter()

    async def asked():
        with metering(meter), bounded(Budget(tokens=100), None, None):
            await role_answers(Named(respond=answered), "updater")(["?"])

    with pytest.raises(UnboundedRequest):
        asyncio.run(asked())
    assert meter.read() == {}
