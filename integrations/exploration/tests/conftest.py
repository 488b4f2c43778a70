from __future__ import annotations

import os
import sys

import pytest

from amc_agents.cli import main

os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["amc", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
