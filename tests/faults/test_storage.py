"""Storage that fails at every change: a named error, nothing half written, and the work goes on where it stopped."""

from __future__ import annotations

import errno
import json

import pytest

from amc_agents.errors import AmcError
from amc_agents.files import cause_and_remedy
from tests.faults.broken_storage import BROKEN, DENIED, FULL, QUOTA, READ_ONLY, storage
from tests.faults.leftovers import nothing_left
from tests.faults.test_wire import checked_message
from tests.faults.works import WORKS

ERRORS = {"disk full": FULL, "read-only": READ_ONLY, "permission denied": DENIED, "quota": QUOTA, "I/O error": BROKEN}


def folder_of(tmp_path, number):
    folder = tmp_path / str(number) / "out"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("work", WORKS[-1:], ids=lambda work: work.name)
def test_a_disk_may_be_full(work, tmp_path):
    check(work, FULL, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("error", ERRORS.values(), ids=list(ERRORS))
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_every_change_may_fail(work, error, tmp_path):
    check(work, error, tmp_path)


def check(work, error, tmp_path):
    """Break every change of a folder once, and go on each time."""
    whole = folder_of(tmp_path, "whole")
    with storage(whole) as watched:
        work.run(whole)
    expected = work.result(whole)
    assert watched.changes > 0
    for first in work.chosen(watched.changes):
        folder = folder_of(tmp_path, first)
        with nothing_left(), storage(folder, error, first), pytest.raises((AmcError, OSError)) as raised:
            refused(work, folder)
        checked_error(raised.value, tmp_path)
        nothing_half_written(folder)
        work.run(folder)
        assert work.result(folder) == expected, first


def refused(work, folder):
    """Do the work. The error of a training keeps no frames: a memory map of numpy is open as long as one has it."""
    try:
        work.run(folder)
    except (AmcError, OSError) as error:
        each: BaseException | None = error if work.name.startswith("train") else None
        while each is not None:
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
        raise


def checked_error(error, root):
    """An error of the library, or an error of the system that names the file (the command line says the remedy)."""
    message = str(error)
    if not isinstance(error, AmcError):
        assert error.filename is not None
        assert error.errno in (*ERRORS.values(), errno.ENOENT)
        message = f"{error.filename}: {cause_and_remedy(error)}"
    checked_message(message.replace(str(root), ""))


def nothing_half_written(folder):
    for path in folder.rglob("*"):
        assert not path.name.endswith(".part"), path
        if path.suffix == ".json":
            json.loads(path.read_text())
