"""Faults of `amc serve`: each ends the command with a cause and a remedy, and no process of vLLM is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.leftovers import nothing_left
from tests.faults.test_wire import REMEDY
from tests.operations.test_serve import amc_serve, children, fake_python, group, read_until, value_folder

__all__ = ["amc_serve", "fake_python", "value_folder"]
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.thorough


@pytest.fixture
def refused(fake_python, value_folder, tmp_path):
    """A function (arguments) -> message of an `amc serve value` that ends by itself with an error."""

    def run(*arguments, python=fake_python):
        line = [sys.executable, "-c", "from amc_agents.cli import main; main()", "serve", "value", str(value_folder)]
        variables = os.environ | {
            "PYTHONPATH": str(ROOT), "AMC_VLLM_PYTHON": python, "XDG_CACHE_HOME": str(tmp_path / "cache")
        }  # fmt: skip
        with nothing_left():
            ended = subprocess.run([*line, *arguments], env=variables, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2, ended
        return checked(ended.stderr)

    return run


def checked(said):
    """The message, whose first line names cause and remedy; the end of vLLM's log may follow."""
    message, _, log = said[said.index("amc: ") :].partition("\n")
    assert len(message) <= 400
    assert message.isprintable()
    assert not log or log.startswith("The end of ")
    assert REMEDY.search(message) or "cause" in message or "possibly because" in message, message
    return message


def test_a_port_in_use(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "choose another --port" in refused("--port", str(taken.getsockname()[1]))


def test_no_vllm(refused, tmp_path):
    assert "install vLLM" in refused("--port", "0", python=str(tmp_path / "none"))
    assert "install vLLM" in refused("--port", "0", python="/bin/false")


def test_a_log_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").touch()
    assert "Choose another" in refused("--port", "0", "--log", str(tmp_path / "file" / "log"))


def test_vllm_dies_while_it_loads(refused):
    assert "Likely cause: ValueError: the block size is 32" in refused("--port", "0", "--", "--fail", "1")


def test_vllm_hangs_while_it_loads(refused):
    message = refused("--port", "0", "--timeout", "2", "--", "--slow", "600")
    assert "not ready after 2 s" in message
    assert "--timeout" in message


@pytest.mark.parametrize("worker", ["", "deaf"])
def test_vllm_dies_later(value_folder, amc_serve, worker):
    with nothing_left():
        running = amc_serve("value", str(value_folder), extra=("--worker", worker) if worker else ())
        read_until(running, "Ctrl-C stops it.")
        (server,) = children(running.pid)
        os.kill(server, signal.SIGKILL)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 2
    assert re.search(r"SIGKILL.*memory", checked(said))
    assert group(server) == []


def test_a_second_signal_ends_what_ignores_the_first(value_folder, amc_serve):
    with nothing_left():
        running = amc_serve("value", str(value_folder), extra=("--worker", "deaf"))
        read_until(running, "Ctrl-C stops it.")
        (server,) = children(running.pid)
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    assert group(server) == []
