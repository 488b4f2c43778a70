"""kill -9 at any moment: no commit tool runs twice, and none is lost unsaid."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.population.commits.killed_run import N_REFUNDS, go_on
from tests.population.commits.ledger import Ledger

ROOT = Path(__file__).resolve().parents[3]


def run_and_kill(folder, n_models, n_refunds, delay_s):
    """Start or go on in another process, and kill it a moment after so many model calls and refunds."""
    command = [sys.executable, "-m", "tests.population.commits.killed_run", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    ledger = Ledger(folder / "ledger.db")
    while process.poll() is None:
        if len(ledger.rows("model")) >= n_models and len(ledger.rows("refund")) >= n_refunds:
            break
        time.sleep(0.001)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()


def finish(folder):
    """Finish the run in this process, and return it with the number of questions."""
    asked = 0
    while (run := go_on(folder)) == "asked":
        asked += 1
    rows = Ledger(folder / "ledger.db").rows("refund")
    assert [row["amount"] for row in rows] == list(range(N_REFUNDS)), (run, asked)
    if run == "ended":
        return None, asked
    assert [commit.args for commit in run.commits] == rows
    assert {commit.status for commit in run.commits} <= {"ran", "answered"}
    assert {len(each.steps) for each in run.population.trajectories} == {2 * N_REFUNDS + 1}
    return run, asked


@pytest.mark.thorough
def test_a_run_that_is_killed_within_a_commit_asks(tmp_path):
    run_and_kill(tmp_path, 0, 2, 0.0)
    run, asked = finish(tmp_path)
    assert asked == 1
    assert [commit.status for commit in run.commits] == ["ran", "answered", "ran"]


@pytest.mark.thorough
def test_a_run_that_is_killed_before_the_first_commit_repeats_nothing(tmp_path):
    run_and_kill(tmp_path, 4, 0, 0.0)
    _, asked = finish(tmp_path)
    assert asked <= 1


@pytest.mark.thorough
def test_a_run_is_killed_twice_at_random_moments(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        for refunds in sorted(rng.integers(0, N_REFUNDS + 1, 2).tolist()):
            run_and_kill(folder, int(rng.integers(0, 12)), refunds, float(rng.uniform(0.0, 0.08)))
        finish(folder)
