"""What a fault may not leave behind: tasks, threads, processes, sockets, files, file descriptors, mounts."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS = 20.0
"""How long threads and processes may take to end; it is waited for, and only its end is a failure."""


def held() -> dict[str, list[str]]:
    """What this process holds now, by kind."""
    descriptors = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # The listing's own.
            continue
    return {
        "threads": sorted(thread.name for thread in threading.enumerate() if thread.name not in _SHARED),
        "descriptors": sorted(f"{number}: {target}" for number, target in descriptors.items()),
        "processes": Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(),
        "mounts": sorted(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()),
    }


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that the block leaves nothing behind, whether it raises or not."""
    before = held()
    yield
    deadline = time.monotonic() + SECONDS
    while (left := _more(before, held())) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.005)
    assert not left, left


def alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, and check that it leaves no task behind."""

    async def watched() -> T:
        try:
            return await work
        finally:
            for _ in range(50):
                if not (left := asyncio.all_tasks() - {asyncio.current_task()}):
                    break
                await asyncio.sleep(0)
            assert not left, left

    return asyncio.run(watched())


def _more(before: dict[str, list[str]], now: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is there now and was not before."""
    found = {}
    for kind, names in now.items():
        rest = list(names)
        for name in before[kind]:
            if name in rest:
                rest.remove(name)
        if rest:
            found[kind] = rest
    return found


_SHARED = ("amc-agents",)
"""Threads that serve the process until its end."""
