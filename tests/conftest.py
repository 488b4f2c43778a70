from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports matplotlib or a tracer: no window is opened, nothing is sent anywhere.
os.environ["MPLBACKEND"] = "Agg"
for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "OPENAI_API_KEY", "AMC_CRITIC", "AMC_CONFIG"):
    os.environ.pop(name, None)

# A loaded machine is not a slow test; the examples are the same in every run, and more of them in CI.
settings.register_profile(
    "amc", deadline=None, derandomize=True, max_examples=int(os.environ.get("AMC_EXAMPLES", "30"))
)
settings.load_profile("amc")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _close_kept_worlds():
    """Close the winners' worlds that a test has left open, which would otherwise wait for the garbage collector."""
    yield
    module = sys.modules.get("amc_agents.runtime.world")
    if module is not None:
        module.close_left()


@cache
def _built_app():
    """The command line's options, which typer would read from the signatures again at every call: a quarter second."""
    from typer.main import get_command

    from amc_agents.cli.commands import app

    return get_command(app)


@pytest.fixture
def workspaces(tmp_path: Path) -> Path:
    """An empty folder for the copies that worlds make."""
    folder = tmp_path / "workspaces"
    folder.mkdir()
    return folder


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["amc", *map(str, arguments)])
        from amc_agents.cli import commands, main  # not before a test wants it: some count what an import brings

        if hasattr(commands.app, "registered_commands"):
            monkeypatch.setattr(commands, "app", _built_app())

        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        told = capsys.readouterr()
        return code, told.out, told.err

    return call
