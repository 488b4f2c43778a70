"""Processes of the copies: a group each, found again by a mark in their environment, and ended with the search.

A process that leaves its group (a daemon) is found by the mark where the system shows environments (Linux). The guard
is a process that ends everything if the search is killed. Only the standard library is imported, since the guard runs
this file alone: `python processes.py FOLDER`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "AMC_CODE_COPY"
"""Variable that every process of a copy has: the folder of the copy's state."""
GRACE_S = 1.0
"""Time in seconds that processes have to end before they are killed."""
_GROUP = "group"


def note_group(folder: Path, group: int) -> None:
    """Record the process group of a copy, so that another process can end it."""
    unfinished = folder / f"{_GROUP}.part"
    unfinished.write_text(f"{group} {_started(group)}")
    os.replace(unfinished, folder / _GROUP)


def marked(folder: Path) -> set[int]:
    """Processes whose mark is a folder or lies in it; none where the system does not show environments."""
    exact, inside = f"{MARK}={folder}\0".encode(), f"{MARK}={folder}{os.sep}".encode()
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (place / "environ").read_bytes()
            if (exact in environment or inside in environment) and int(place.name) != os.getpid():
                found.add(int(place.name))
    return found


def end_processes(folder: Path, *, of_run: bool = False) -> int:
    """End the process groups of a copy and all processes with its mark, and return how many had the mark.

    Args:
        folder: the folder of the copy's state, or of a run.
        of_run: whether the folder is that of a run, so that all its copies are meant.
    """
    files = list(folder.glob(f"*/{_GROUP}")) if of_run else [folder / _GROUP]
    groups = [group for file in files if (group := _running_group(file)) is not None]
    first = marked(folder)
    _signal_all(groups, first, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and (marked(folder) or any(map(_group_exists, groups))):
        time.sleep(0.02)
    for _ in range(50):  # A process may fork while the others are killed.
        left = marked(folder)
        _signal_all(groups, left, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.02)
    for file in files:  # The number may be used again.
        file.unlink(missing_ok=True)
    return len(first)


def _running_group(file: Path) -> int | None:
    """The group that a file names, if its leader has not been replaced by a later process of that number."""
    try:
        group, started = file.read_text().split(" ")
    except (OSError, ValueError):
        return None
    now = _started(int(group))
    return int(group) if now in ("", started) else None


def _started(process: int) -> str:
    """When a process started, in the system's ticks; "" if it does not run, or the system does not say."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal_all(groups: list[int], processes: set[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


class Guard:
    """A process that ends all processes of a run if this process dies. Use it as a context manager.

    Args:
        folder: the folder of the run's state.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Guard:
        command = [sys.executable, "-I", "-S", __file__, str(self._folder)]
        # Without its standard streams, a terminal or a pipe that the search wrote to is not kept open.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _main(folder: Path) -> None:
    """Wait for the end of the search, then end the processes of its copies."""
    while sys.stdin.buffer.read(1):
        pass
    end_processes(folder, of_run=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
