"""A process that is killed by SIGKILL at any moment: another process goes on with the run, exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from amc_agents.errors import AgentContractError
from tests.population.durable.killed_run import LENGTH, N, graph
from tests.population.durable.scenario import CONFIG, facts
from tests.population.worlds import start


def killed_after(repository, folder, n_calls, delay):
    """Start a run in another process, and kill it a moment after its n-th call."""
    command = [sys.executable, "-m", "tests.population.durable.killed_run", str(folder / "db"), str(folder / "log")]
    run = subprocess.Popen(command, cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)})
    while run.poll() is None and len(calls(folder)) < n_calls:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()


def calls(folder):
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def resumed(folder):
    """The run's result, if the process was killed before it had one."""
    with SqliteSaver.from_conn_string(str(folder / "db")) as saver:
        again = graph(saver, folder / "log")
        given = None if again.get_state(CONFIG).values else start()
        try:
            return facts(again.run(given, CONFIG))
        except AgentContractError:  # It had ended.
            return None


def check(repository, folder, n_calls, delay):
    folder.mkdir()
    killed_after(repository, folder, n_calls, delay)
    before = calls(folder)
    result = resumed(folder)
    after = calls(folder)[len(before) :]
    if result is None:
        assert len(before) == N * LENGTH + 2, "the run had ended"
        return
    assert result == facts(graph(None, folder / "log").run(start()))
    # Points lie at most two steps apart: after step k, no call for a step before k - 1 is repeated.
    reached = max(int(call.split()[1]) for call in before if call.startswith("model"))
    assert all(int(call.split()[1]) >= reached - 2 for call in after), (before[-1], after[0])


@pytest.mark.thorough
def test_a_killed_run_goes_on(repository, tmp_path):
    check(repository, tmp_path / "run", n_calls=20, delay=0.003)


@pytest.mark.thorough
def test_random_moments(repository, tmp_path):
    rng = np.random.default_rng()
    for n_calls in rng.choice(np.arange(1, N * LENGTH + 2), 8, replace=False).tolist():
        check(repository, tmp_path / f"after {n_calls} calls", n_calls, rng.random() * 0.02)
