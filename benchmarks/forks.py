"""Measure the forks of real worlds: folders, databases and processes.

    python benchmarks/forks.py [--postgres postgresql://user@host/database]

Prints JSON. There are no bounds: the times depend on the disk and on the load.

1. "forks": five forks of a folder with 2,000 files, of a 10 MB SQLite database, and of processes with 1 and 100 MiB of
   state, as median milliseconds per fork. "copy_ms" is the plain copy, measured in turn with the forks:
   `shutil.copytree`, `shutil.copyfile`, or pickling and unpickling the object. Each process has imported this script,
   and therefore LangGraph. With `--postgres`, a 10 MB PostgreSQL database; its plain copy is `COPY` into a new table.
2. "runs": `amc` with 15 particles, an instant scripted model and 3 resamplings in each world, as seconds of wall time.
   "seconds_without_copies" is the same run in a world whose fork copies nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pickle
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs import DirectoryFork, ProcessFork, SqliteFork
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Forkable, Trajectory

N_PARTICLES, STEPS, N_FORKS = 15, (1, 2, 3), 5
N_FILES, DATABASE_MB, ROW_BYTES = 2000, 10, 1000
N_ROWS = DATABASE_MB * 1_000_000 // ROW_BYTES


class State:
    """An object with `n_mib` MiB of memory."""

    def __init__(self, n_mib: int) -> None:
        self.memory = os.urandom(n_mib << 20)


class Empty:
    """A world without state."""

    async def fork(self, seed: int) -> Empty:
        """Return a new world."""
        return Empty()

    async def close(self) -> None:
        """Do nothing."""


class Uneven:
    """A critic with random values, so that each resampling leaves some particles without offspring."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    async def values(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        """Draw values."""
        return self.rng.normal(size=len(trajectories))


Case = tuple[Callable[[], Forkable], Callable[[], object]]
"""Creates a world, and makes a plain copy of its state."""


def folder_case(scratch: Path) -> Case:
    """Write the folder."""
    source = scratch / "tree"
    for number in range(N_FILES):
        path = source / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"VALUE = {number}\n" * 100)

    copies = count()
    return (
        partial(DirectoryFork, source, workspace=scratch),
        lambda: shutil.copytree(source, scratch / f"copy{next(copies)}"),
    )


def sqlite_case(scratch: Path) -> Case:
    """Write the database."""
    source = scratch / "shop.db"
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, content BLOB)")
        rows = [(number, os.urandom(ROW_BYTES)) for number in range(N_ROWS)]
        connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)

    return partial(SqliteFork, source, workspace=scratch), lambda: shutil.copyfile(source, scratch / "copy.db")


def process_case(n_mib: int) -> Case:
    """Create the object that is pickled; the processes create theirs."""
    state = State(n_mib)
    return partial(ProcessFork, partial(State, n_mib)), lambda: pickle.loads(pickle.dumps(state))


@contextmanager
def postgres_case(url: str) -> Iterator[Case]:
    """Create the database, and drop it at the end. Needs integrations/postgres."""
    import psycopg
    from amc_agents_postgres import PostgresFork

    dsn = psycopg.conninfo.make_conninfo(url, dbname="amc_benchmark")

    def copy() -> None:
        with psycopg.connect(dsn) as read, psycopg.connect(url) as write:
            write.execute("CREATE TEMPORARY TABLE orders (id int PRIMARY KEY, content bytea)")
            with (
                read.cursor().copy("COPY orders TO STDOUT") as rows,
                write.cursor().copy("COPY orders FROM STDIN") as copied,
            ):
                for row in rows:
                    copied.write(row)

    with psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE DATABASE amc_benchmark")
        try:
            with psycopg.connect(dsn) as connection:
                connection.execute("CREATE TABLE orders (id int PRIMARY KEY, content bytea)")
                with connection.cursor().copy("COPY orders FROM STDIN") as rows:
                    for number in range(N_ROWS):
                        rows.write_row((number, os.urandom(ROW_BYTES)))
            yield partial(PostgresFork, dsn), copy
        finally:
            server.execute("DROP DATABASE amc_benchmark WITH (FORCE)")


async def measure_forks(case: Case) -> dict[str, float]:
    """Fork one world and copy its state, in turn."""
    make, copy = case
    world = make()
    twins, fork_ms, copy_ms = [], [], []
    for seed in range(N_FORKS):
        started = time.perf_counter()
        twins.append(await world.fork(seed))
        fork_ms.append(1e3 * (time.perf_counter() - started))
        started = time.perf_counter()
        copy()
        copy_ms.append(1e3 * (time.perf_counter() - started))
    for each in (*twins, world):
        await each.close()
    forked, copied = float(np.median(fork_ms)), float(np.median(copy_ms))
    return {"fork_ms": round(forked, 2), "copy_ms": round(copied, 2), "ratio": round(forked / copied, 3)}


@tool
@effect("world")
def work() -> str:
    """Do one step of work."""
    return type(current_environment()).__name__


def respond(messages: Sequence[BaseMessage]) -> str | AIMessage | Exception:
    """Call the tool until the last resampling is over."""
    if len(messages) > 2 * len(STEPS) + 2:
        return "done"
    return AIMessage("", tool_calls=[{"name": "work", "args": {}, "id": f"call-{len(messages)}"}])


async def measure_run(make: Callable[[], Forkable]) -> dict[str, float]:
    """Measure `amc` in a world, and in a world without state."""
    n_forks, seconds = await run_seconds(make)
    _, without = await run_seconds(Empty)
    return {
        "forks_at_resampling": n_forks,
        "seconds": round(seconds, 2),
        "seconds_without_copies": round(without, 2),
    }


async def run_seconds(make: Callable[[], Forkable]) -> tuple[int, float]:
    """Return the number of forks at the resamplings of a run, and its wall time."""
    agent = create_agent(ScriptedChatModel(respond=respond), [work])
    graph = amc(agent, Uneven(), environment=lambda state: make(), n_particles=N_PARTICLES, seed=0,
                resample=AtSteps(*STEPS))  # fmt: skip
    started = time.perf_counter()
    run = await graph.arun({"messages": [("user", "work")]})
    seconds = time.perf_counter() - started
    resampled = [point.ancestors for point in run.history if point.ancestors is not None]
    assert len(resampled) == len(STEPS), "a resampling is missing"
    return sum(int((ancestors != np.arange(N_PARTICLES)).sum()) for ancestors in resampled), seconds


async def measure(cases: dict[str, Case]) -> dict[str, Any]:
    """Measure all worlds."""
    await run_seconds(Empty)  # Warm-up: imports and caches.
    forks = {name: await measure_forks(case) for name, case in cases.items()}
    return {"forks": forks, "runs": {name: await measure_run(make) for name, (make, _) in cases.items()}}


def main() -> None:
    """Measure, and print the tables as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--postgres", metavar="URL", help="also measure a database of this server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "folder, 2,000 files": folder_case(Path(folder)),
            "SQLite, 10 MB": sqlite_case(Path(folder)),
            "process, 1 MiB": process_case(1),
            "process, 100 MiB": process_case(100),
        }
        if options.postgres:
            with postgres_case(options.postgres) as case:
                rows = asyncio.run(measure({**cases, "PostgreSQL, 10 MB": case}))
        else:
            rows = asyncio.run(measure(cases))
    print(json.dumps({"benchmark": "forks", "particles": N_PARTICLES, "resamplings": len(STEPS), **rows}, indent=2))


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)  # Identical particles are intended here.
    main()
