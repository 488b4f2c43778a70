"""Lines of the log: no text of a model, a world or a server can add a line, or steer the terminal that shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from amc_agents.critics.allowed import redacted
from amc_agents.errors import CriticServerError

PACKAGE = Path(__file__).resolve().parents[1] / "amc_agents"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def direct_calls():
    """Calls of a logger that do not go through `amc_agents.logs.log`: path:line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match call:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "log" | "logger" | "logging"), attr=level)):
                    if level in LEVELS:
                        yield f"{path.relative_to(PACKAGE)}:{call.lineno}"


@pytest.mark.thorough
def test_every_event_is_logged_by_the_function_that_neutralises_it():
    assert list(direct_calls()) == []


def test_a_logged_error_is_one_printable_line(caplog):
    hostile = CriticServerError("http://h/x", "HTTP 404: \x1b[2Jok\n2026-01-01 INFO all is well", 404)
    with pytest.raises(CriticServerError), redacted("c"):
        raise hostile
    [record] = caplog.records
    assert "\\u001b[2Jok 2026-01-01" in record.getMessage()
    assert "\n" not in record.getMessage()
