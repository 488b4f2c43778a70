"""Write to a posterior from twenty processes at once: `python -m tests.psrl.posterior.posterior_writers URL N`."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import sys

from amc_agents.psrl.posterior.memory import Evidence
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.psrl.posterior.updates import update_posterior

NAMESPACE = ("worlds", "lever")


def write(url, i, together):
    async def apply(text, evidence):
        await asyncio.sleep(0.01)
        return f"{text}\n{evidence.observation}"

    kind, name = ("postgres", "PostgresStore") if url.startswith("postgres") else ("sqlite", "SqliteStore")
    with getattr(importlib.import_module(f"langgraph.store.{kind}"), name).from_conn_string(url) as store:
        together.wait()
        asyncio.run(update_posterior(StorePosterior(store, NAMESPACE), apply, Evidence(f"{i}", f"x{i}")))


def main(url, n):
    processes = multiprocessing.get_context("fork")  # This process has no threads yet, and imports once for all.
    together = processes.Barrier(n)
    started = [processes.Process(target=write, args=(url, i, together)) for i in range(n)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in started))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
