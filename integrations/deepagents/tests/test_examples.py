from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepagents")

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "repair_repository.py"


def test_a_deep_agent_repairs_a_repository():
    path = os.pathsep.join([str(EXAMPLE.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, EXAMPLE], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "2 passed" in done.stdout
    assert "+    return sum(prices)" in done.stdout
    assert "+    return cents >= 50" in done.stdout
