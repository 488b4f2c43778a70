"""The logger of each room, and the events that docs/observability.md lists."""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys

import pytest

from amc_agents import AmcSettings
from amc_agents.logs import log, room_logger
from amc_agents.population.wrap import amc
from amc_agents.quoting import keep_secret
from amc_agents.smc import AtSteps, Never
from tests.population.worlds import ReturnSoFar, SumWorld, digits, number_agent, start, sum_world

LEVELS = {"DEBUG", "INFO", "WARNING"}


@pytest.fixture(autouse=True)
def worlds_counted_from_zero():
    SumWorld.made = SumWorld.open = 0


def sources(repository):
    package = repository / "amc_agents"
    return {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}


def events_in(source, module):
    """(logger, level, event) of each call of `log`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "log" and len(node.args) >= 4:
            _, level, event, _ = node.args
            yield (
                room_logger(f"amc_agents.{module}").name,
                ast.unparse(level).removeprefix("logging."),
                ast.literal_eval(event),
            )


@pytest.mark.thorough
def test_every_event_is_documented_with_its_logger_and_level(repository):
    page = (repository / "docs/observability.md").read_text()
    rows = re.findall(r"^\| `(amc_agents[.\w]+)` \| (\w+) \| `([\w.]+)` \|", page, re.MULTILINE)
    made = {
        event
        for path, source in sources(repository).items()
        for event in events_in(source, path.removesuffix(".py").replace("/", "."))
    }
    assert {level for _, level, _ in made} == LEVELS
    assert set(rows) == made
    assert len(rows) == len(made)


def test_only_one_place_creates_loggers(repository):
    creating = [path for path, source in sources(repository).items() if "getLogger(" in source]
    assert creating == ["logs.py"]


@pytest.mark.thorough
def test_no_handler_is_installed(repository):
    code = """
import logging, amc_agents
for name in amc_agents.__all__:
    getattr(amc_agents, name)
loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("amc_agents")]
print(len(loggers) > 3, [logger.name for logger in loggers if logger.handlers or logger.level])
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(repository)})  # fmt: skip
    assert told.stdout == "True []\n"


def test_untrusted_text_does_no_harm(caplog):
    keep_secret("sk-canary-secret")
    log(room_logger("amc_agents.population.nodes"), logging.WARNING, "a.test", "%(n)d: %(text)s, 100%%", n=2,
        text="\x1b[2J\r\nsk-canary-secret %s\u202e")  # fmt: skip
    [record] = caplog.records
    assert record.getMessage() == "2: \\u001b[2J *** %s\\u202e, 100%"
    assert (record.name, record.event) == ("amc_agents.population", "a.test")
    assert record.fields == {"n": 2, "text": "\\u001b[2J *** %s\\u202e"}
    assert record.filename == "test_logs.py"


def test_a_run_is_told_at_the_levels_of_its_events(caplog):
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("down \x1b[2J") if answer.endswith("0") else answer

    caplog.set_level(logging.DEBUG, "amc_agents")
    graph = amc(number_agent(respond), ReturnSoFar(3.0), environment=sum_world, n_particles=6, resample=AtSteps(2),
                settings=AmcSettings(quorum=1), seed=0)  # fmt: skip
    run = graph.run(start())
    events = [record for record in caplog.records if hasattr(record, "event")]
    told = [(record.levelname, record.event) for record in events]
    assert told.count(("DEBUG", "particles.weighed")) == len(run.history)
    assert told.count(("DEBUG", "particles.resampled")) == sum(each.ancestors is not None for each in run.history)
    assert told[-1] == ("INFO", "run.ended")
    assert events[-1].fields["best_return"] == run.best.return_
    failed = [record.fields for record in events if record.event == "particle.failed"]
    assert failed
    assert {(each["error"], each["text"]) for each in failed} == {("RuntimeError", "down \\u001b[2J")}


def test_quiet_notes_silence_only_the_notes(caplog):
    from amc_agents.population.conclusion import quiet_notes, warn_once

    with quiet_notes():
        warn_once("a note of this test")
        caplog.set_level(logging.INFO, "amc_agents")
        amc(number_agent(), environment=sum_world, n_particles=2, resample=Never(), seed=0).run(start())
    assert "a note of this test" not in caplog.text
    assert "run.ended" in [getattr(record, "event", None) for record in caplog.records]


def test_counted_notes_are_logged_once_with_the_number_of_runs(caplog):
    from amc_agents.population.conclusion import counted_notes, warn_once

    with counted_notes():
        for steps in (3, 4, 4):
            warn_once(f"all 3 particles were alike at each of {steps} steps")
        warn_once("another note of this test")
        assert not caplog.messages
    assert caplog.messages == ["all 3 particles were alike at each of 4 steps (3 runs)", "another note of this test"]
