"""Measure what a shadow costs the calls that it watches: the ratio of its median latency to the bare agent's.

    python benchmarks/shadow.py [--blocks 80]

Blocks of 20 calls alternate between the bare agent and the same agent under `shadow`, with N = 15 and real searches in
the background; the next block starts when the queue of searches is empty. The result is the ratio of the medians over
all calls, with a bootstrap interval over pairs of blocks. Bound 1.02. The settings, with T = 10 steps:

1. An instant model and a rate of 0: what a call pays that is not sampled. CPU time, as the median ratio of 1,200 pairs
   of consecutive calls. On an idle machine CPU time is the latency, and the machine's other work hardly changes it.
2. An instant model, a rate of 0.05 and 20 ms between two calls: CPU time of the process during a call, which includes
   the work of searches that run meanwhile.
3. The same without a pause: the loop is never idle, so each node of a search waits for PATIENCE_S.
4. A policy behind a local HTTP server that answers in 100 ms, five calls at a time: wall time.

The exit code is 1 if a ratio exceeds its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from pydantic import SecretStr

from amc_agents import AtSteps, shadow, text_agent, use_environment

overhead: Any = import_module("overhead")  # of this folder
N, BOUND = 15, 1.02


class Setting(NamedTuple):
    """How a block of calls is made."""

    clock: Callable[[], float]
    rate: float = 0.05
    n_calls: int = 20
    at_once: int = 1
    gap: float = 0.0
    """Pause between calls in seconds."""


def value(trajectories: Any) -> list[float]:
    return [0.1 * len(trajectory.steps) for trajectory in trajectories]


async def block(graph: Any, setting: Setting) -> list[float]:
    """Return the latencies of a block of calls."""
    times: list[float] = []

    async def call() -> None:
        with use_environment(overhead.Walk()):
            started = setting.clock()
            await graph.ainvoke(overhead.INPUT)
            times.append(setting.clock() - started)

    for _ in range(setting.n_calls // setting.at_once):
        await asyncio.gather(*(call() for _ in range(setting.at_once)))
        if setting.gap:
            await asyncio.sleep(setting.gap)
    return times


async def drained(watched: Any) -> None:
    """Wait until no search runs or waits."""
    while watched.shadow.background.busy:
        await asyncio.sleep(0.01)


def ratio_of_medians(latencies: Any) -> float:
    bare, watched = np.median(np.moveaxis(latencies, 1, 0).reshape(2, -1), axis=1)
    return float(watched / bare)


async def compare(agent: Any, n_blocks: int, setting: Setting) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        watched = shadow(agent, value, setting.rate, folder=folder, n_particles=N, resample=AtSteps(4), seed=0)
        for graph in (agent, watched):
            await block(graph, setting)
        times = []
        for number in range(n_blocks):
            pair = {}
            for graph in ((agent, watched), (watched, agent))[number % 2]:
                gc.collect()
                pair[graph is watched] = await block(graph, setting)
                await drained(watched)
            times.append([pair[False], pair[True]])
        await watched.aclose()
        report = watched.report()
        watched.shadow.records.close()
    latencies = np.array(times)  # [blocks, 2, calls]
    drawn = np.random.default_rng(0).integers(n_blocks, size=(2000, n_blocks))
    ratios = [ratio_of_medians(latencies[blocks]) for blocks in drawn]
    return {
        "bare_ms": 1e3 * float(np.median(latencies[:, 0])),
        "ratio": ratio_of_medians(latencies),
        "interval": [float(end) for end in np.percentile(ratios, [2.5, 97.5])],
        "blocks": n_blocks,
        "calls_per_block": setting.n_calls,
        "searches": report.n_searched,
        "failed": report.n_failed,
        "dropped": report.counts.get("dropped", 0),
        "bound": BOUND,
    }


async def unsampled(agent: Any, n_pairs: int) -> dict[str, Any]:
    """Compare consecutive calls, none of which is sampled."""
    with tempfile.TemporaryDirectory() as folder:
        watched = shadow(agent, value, 0.0, folder=folder, n_particles=N, resample=AtSteps(4))
        once = Setting(time.thread_time, n_calls=1)
        times = np.empty((n_pairs, 2))
        for pair in range(n_pairs):
            if pair % 100 == 0:
                gc.collect()
            for column in ((0, 1), (1, 0))[pair % 2]:
                times[pair, column] = (await block((agent, watched)[column], once))[0]
        await watched.aclose()
        watched.shadow.records.close()
    ratios = times[20:, 1] / times[20:, 0]  # The first calls load what later ones share.
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    return {
        "bare_ms": 1e3 * float(np.median(times[:, 0])),
        "ratio": float(np.median(ratios)),
        "interval": [float(end) for end in np.percentile(np.median(drawn, axis=1), [2.5, 97.5])],
        "pairs": n_pairs,
        "bound": BOUND,
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=80)
    n_blocks = parser.parse_args().blocks
    logging.disable(logging.WARNING)
    cpu, rows = time.process_time, {}

    def show(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        print(name, json.dumps(row), flush=True)

    instant = overhead.instant_agent()
    show("instant model, rate 0", await unsampled(instant, 15 * n_blocks))
    show("instant model, 20 ms between calls", await compare(instant, n_blocks, Setting(cpu, gap=0.02)))
    show("instant model, back to back", await compare(instant, n_blocks, Setting(cpu)))
    with overhead.local_server() as url:
        model = overhead.LatencyModel(
            base_url=url, api_key=SecretStr("none"), model="local", latencies=np.full((1, overhead.T), 0.1)
        )
        show("server of 100 ms", await compare(text_agent(model), n_blocks, Setting(time.perf_counter, at_once=5)))
    sys.exit(any(row["ratio"] > row["bound"] for row in rows.values()))


if __name__ == "__main__":
    asyncio.run(main())
