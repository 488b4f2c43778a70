"""Ctrl-C, SIGTERM and kill -9 at every change of the folder: nothing is lost, and nothing is done twice.

The process signals itself before its k-th change, so that no moment depends on which process is faster.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults import broken_storage
from tests.faults.leftovers import nothing_left
from tests.faults.works import WORKS

SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "kill -9": signal.SIGKILL}
DONE, INTERRUPTED, FAILED = 0, 130, 1


class Signalling(broken_storage.Storage):
    """Signals its own process before a change."""

    def refuse(self, path):
        number, self.fails_with = self.fails_with, 0
        os.kill(os.getpid(), number)


def in_a_process(work, folder, number, change):
    """Do the work in a forked process that is signalled before a change; return how it ended."""
    child = os.fork()
    if child == 0:
        # A shell starts its background jobs with SIGINT ignored, and Python then leaves it so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = FAILED
        try:
            with broken_storage.storage(folder, kind=Signalling, fails_with=number, first=change):
                work.run(folder)
            code = DONE
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.thorough
@pytest.mark.parametrize("number", SIGNALS.values(), ids=list(SIGNALS))
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_work_goes_on_after_a_signal_at_any_change(work, number, tmp_path):
    whole = tmp_path / "whole" / "out"
    whole.mkdir(parents=True)
    with broken_storage.storage(whole) as watched:
        work.run(whole)
    expected = work.result(whole)
    ends = {INTERRUPTED} if number == signal.SIGINT else {-number}
    for change in work.chosen(watched.changes):
        folder = tmp_path / str(change) / "out"
        folder.mkdir(parents=True)
        with nothing_left():
            assert in_a_process(work, folder, number, change) in ends
            work.run(folder)
        assert work.result(folder) == expected, change
