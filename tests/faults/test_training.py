"""A training whose files grow too large, or whose data is damaged. (Storage, signals and clocks: `works`.)"""

from __future__ import annotations

import os
import resource

import pytest

from amc_agents.errors import StorageError
from tests.faults.leftovers import nothing_left
from tests.faults.works import WORKS

TRAININGS = {work.name: work for work in WORKS if work.name.startswith("train")}
LIMITS = {"train value": (100, 2_000, 20_000, 60_000, 100_000), "train verdict": (100, 2_000, 20_000, 100_000),
          "train goal": (100, 2_000)}  # fmt: skip
"""Largest sizes of a file in bytes: each ends another write, by Python, by safetensors, by torch, or by a tokenizer."""


def ended_by(work, folder, limit):
    """Do the work in a forked process that may not write larger files; return its error's kind and message."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no error"
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            work.run(folder)
        except Exception as error:
            said = f"{type(error).__name__}\n{error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        kind, _, message = pipe.read().partition("\n")
    os.waitpid(child, 0)
    return kind, message


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "limit"), [(name, limit) for name in LIMITS for limit in LIMITS[name]])
def test_a_file_that_cannot_grow_is_a_named_error_and_costs_nothing(name, limit, tmp_path):
    """The libraries that write weights ask the system themselves, so no hook of Python's sees it."""
    work = TRAININGS[name]
    whole, folder = (tmp_path / part for part in ("whole", "limited"))
    for each in (whole, folder):
        each.mkdir()
    work.run(whole)
    with nothing_left():
        kind, message = ended_by(work, folder, limit)
    assert kind == StorageError.__name__, message
    assert len(message) <= 400
    assert "Raise the limit" in message or "the disk is full" in message
    work.run(folder)
    assert work.result(folder) == work.result(whole)
