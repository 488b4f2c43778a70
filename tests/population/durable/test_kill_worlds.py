"""Real files and a real SQLite database: a process is killed, and another one goes on with the particles' worlds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.population.durable.killed_worlds_run import LENGTH, START, graph, write_original
from tests.population.durable.scenario import CONFIG, facts


@pytest.mark.thorough
def test_files_and_rows_of_the_particles_survive_a_killed_process(repository, tmp_path):
    write_original(tmp_path)
    command = [sys.executable, "-m", "tests.population.durable.killed_worlds_run", str(tmp_path), "3"]
    done = subprocess.run(command, cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)}, timeout=60)
    assert done.returncode == -signal.SIGKILL

    plain_graph, all_calls = graph(tmp_path, None)
    with plain_graph.run(START) as plain, SqliteSaver.from_conn_string(str(tmp_path / "checkpoints")) as saver:
        resumed_graph, calls = graph(tmp_path, saver)
        with resumed_graph.run(None, CONFIG) as run:
            assert facts(run) == facts(plain)
            assert run.best_world.files.diff() == plain.best_world.files.diff()
            assert run.best_world.db.changes() == plain.best_world.db.changes()
            assert len(run.best_world.db.changes()) == LENGTH
            assert len(calls) < len(all_calls), "what was before the newest point is not repeated"
            run.best_world.files.apply()
            numbers = [step.observation for step in run.best.steps if step.observation]
    assert sum(map(int, (tmp_path / "files" / "notes.txt").read_text().split())) == int(numbers[-1])
    assert not list((tmp_path / "worlds").glob("amc-worlds-*")), "the killed process's copies are swept"
