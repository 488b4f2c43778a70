"""Switching traces on and off, and the thread that makes the spans."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from amc_agents_telemetry import backlog as backlogs
from amc_agents_telemetry import flush, instrument, uninstrument
from amc_agents_telemetry.backlog import Backlog
from amc_agents_telemetry.instrumenting import CONTENT_VARIABLE
from seen import Seen

from amc_agents.errors import ConfigurationError
from amc_agents.population.wrap import amc
from amc_agents.smc import Never
from tests.population.worlds import number_agent, start, sum_world


def run():
    return amc(number_agent(), environment=sum_world, n_particles=2, resample=Never(), seed=0).run(start())


def test_switched_off_nothing_more_is_traced(seen):
    run()
    uninstrument()
    spans = seen.spans
    run()
    assert seen.spans == spans
    assert len([span for span in spans if span.parent is None]) == 1


def test_a_second_call_replaces_the_first(seen):
    with Seen() as second:
        run()
        assert second.runs
        assert not seen.runs


def test_a_run_that_began_before_the_switch_off_still_ends_its_spans(seen):
    def respond(messages):
        uninstrument()
        return "Thought: any\nAction: 1"

    amc(number_agent(respond), environment=sum_world, n_particles=2, resample=Never(), seed=0).run(start())
    assert len(seen.runs) == 1
    assert len(seen.agents) == 2


@pytest.mark.parametrize(
    ("value", "captured"), [("SPAN_ONLY", True), ("true", True), ("NO_CONTENT", False), ("", False)]
)
def test_the_conventions_switch_for_content(monkeypatch, value, captured):
    monkeypatch.setenv(CONTENT_VARIABLE, value)
    with Seen(capture_content=None) as seen:
        run()
        assert any("gen_ai.output.messages" in span.attributes for span in seen.named("chat")) is captured


def test_an_unknown_value_of_the_switch_is_named(monkeypatch):
    monkeypatch.setenv(CONTENT_VARIABLE, "event_only")
    with pytest.raises(ConfigurationError, match="got 'event_only'"):
        instrument()


def test_flush_without_traces_is_done():
    assert flush(0.0)


def test_a_backlog_keeps_the_order_and_survives_a_failure(caplog):
    done, backlog = [], Backlog(relieve=lambda: None)
    backlog.add(done.append, 1)
    backlog.add(int, "not a number")
    backlog.add(done.append, 2)
    assert backlog.flush(60)
    assert done == [1, 2]
    assert "a span or a feedback was lost: ValueError" in caplog.text
    backlog.stop()
    backlog.add(done.append, 3)
    assert done == [1, 2, 3], "after its end, work is done at once"


def test_a_backlog_that_grows_too_long_drops_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(backlogs, "MOST_WAITING", 3)
    go, began, done = threading.Event(), threading.Event(), []
    backlog = Backlog(relieve=lambda: None, interval_s=0.0)

    def block():
        began.set()
        go.wait()

    backlog.add(block)
    began.wait()
    for number in range(5):
        backlog.add(done.append, number)
    go.set()
    assert backlog.flush(60)
    backlog.stop()
    assert done == [0, 1, 2]
    assert "2 spans or feedbacks were dropped" in caplog.text


def test_new_work_wakes_the_thread_again_without_a_flush():
    backlog = Backlog(relieve=lambda: None, interval_s=0.0)
    for _ in range(20):
        done = threading.Event()
        backlog.add(done.set)
        assert done.wait(60)
    backlog.stop()


def test_the_exporter_may_catch_up_from_time_to_time():
    relieved, backlog = [], Backlog(relieve=lambda: relieved.append(None))
    for _ in range(2_000):
        backlog.add(int)
    assert backlog.flush(60)
    assert 1 <= len(relieved) <= 2
    backlog.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_thread_of_its_own():
    code = """
import os
from amc_agents_telemetry.backlog import Backlog
from amc_agents_telemetry.instrumenting import CONTENT_VARIABLE
done, backlog = [], Backlog(relieve=lambda: None)
backlog.add(done.append, "parent")
assert backlog.flush(60)
if os.fork() == 0:
    backlog.add(done.append, "child")
    os._exit(0 if backlog.flush(60) and done == ["parent", "child"] else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)  # fmt: skip
    assert told.stdout == "0\n"
