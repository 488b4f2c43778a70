"""Measure the overhead of `amc(...)`, as ratios to the same N bare agents under asyncio.gather.

    python benchmarks/overhead.py [--runs 30]

1. A policy behind a local HTTP server that answers in 100 ms: wall time. Bound 1.15.
2. The same with log-normal latencies (mean 100 ms, sigma 0.8) and one resampling point: ratio of the mean wall time
   to the mean of the slowest bare agent, with common latencies. Bound 1.3; a barrier alone costs 1.18 on average.
3. An instant model, resampled every ten steps from step 4: CPU time as N and T grow, as medians and quartiles of paired
   ratios. Bounds: 1.5 at T = 10, where a resampling has the largest share, and 1.35 elsewhere, at least a tenth above
   every median measured so far. On a busy machine single pairs vary by a tenth, and so do rows of few pairs. The rows
   "never" and "every step" are the extremes of resampling; the latter has no bound. N = 500 is measured only at T = 10,
   because a single pair at T = 50 takes half a minute.
4. The memory of the same agents: peak per message at T = 100 divided by the peak at T = 25. Bound 1: memory grows only
   with the messages.

The default is N = 15 particles and T = 10 steps. The exit code is 1 if a ratio exceeds its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.runtime.world import current_environment, use_environment
from amc_agents.smc import AtSteps, EveryStep, Never, Schedule
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task, TimeStep

N, T = 15, 10
TASK = Task("walk", "Walk ten steps.")
INPUT = {"messages": [HumanMessage(TASK.instruction)]}


class Walk:
    """A world of `length` steps with varying rewards and its own row of latencies."""

    rows = 0

    def __init__(self, length: int = T) -> None:
        self.length, self.taken = length, 0
        self.row, Walk.rows = Walk.rows, Walk.rows + 1

    async def reset(self, task: Task) -> TimeStep:
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        self.taken += 1
        reward = float((self.row * 7 + self.taken * 3) % 5)
        return TimeStep.termination("there", reward) if self.taken == self.length else TimeStep.transition("on", reward)

    async def fork(self, seed: int) -> Walk:
        copy = Walk(self.length)
        copy.taken = self.taken
        return copy

    async def close(self) -> None:
        pass


class LatencyModel(ChatOpenAI):
    """ChatOpenAI with the local server, which waits for the latency in the world's row."""

    latencies: Any = None

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        world: Any = current_environment()
        world = getattr(world, "inner", world)
        latency = float(self.latencies[world.row % len(self.latencies), world.taken])
        return await super()._agenerate(*args, **kwargs, extra_body={"latency": latency})


async def bare(agent: Any, n_agents: int = N, n_steps: int = T) -> None:
    """Run N agents side by side, each in its own world."""
    Walk.rows = 0

    async def in_world(world: Walk) -> None:
        with use_environment(world):
            await agent.ainvoke(INPUT)

    await asyncio.gather(*(in_world(Walk(n_steps)) for _ in range(n_agents)))


async def wrapped(graph: Any) -> None:
    """Run the same agents as particles."""
    Walk.rows = 0
    await graph.ainvoke(INPUT)


def as_particles(
    agent: Any, schedule: Schedule, n_particles: int = N, n_steps: int = T, seed: int | None = None
) -> Any:
    return amc(
        agent,
        environment=lambda state: (Walk(n_steps), TASK),
        n_particles=n_particles,
        resample=schedule,
        horizon=n_steps + 1,
        seed=seed,
    )


async def seconds(work: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    await work()
    return clock() - started


async def constant_latency(url: str, runs: int) -> dict[str, float]:
    agent = text_agent(
        LatencyModel(base_url=url, api_key=SecretStr("none"), model="local", latencies=np.full((1, T), 0.1))
    )
    graph = as_particles(agent, AtSteps(4))
    await bare(agent)
    await wrapped(graph)
    times = np.array([[await seconds(lambda: bare(agent)), await seconds(lambda: wrapped(graph))] for _ in range(runs)])
    single = await seconds(lambda: bare(agent, 1))
    return {"bare_s": float(np.median(times[:, 0])), "amc_s": float(np.median(times[:, 1])), "single_agent_s": single,
            "ratio": float(np.median(times[:, 1]) / np.median(times[:, 0])), "bound": 1.15}  # fmt: skip


async def lognormal_latency(url: str, runs: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    model = LatencyModel(base_url=url, api_key=SecretStr("none"), model="local")
    agent = text_agent(model)
    graph = as_particles(agent, AtSteps(5))
    times = []
    for _ in range(runs):
        # An offspring has its own row of latencies: it shares its parent's past, not its future.
        model.latencies = rng.lognormal(np.log(0.1) - 0.32, 0.8, (2 * N, T))
        times.append([await seconds(lambda: bare(agent)), await seconds(lambda: wrapped(graph))])
    means = np.mean(times, axis=0)
    return {"bare_s": float(means[0]), "amc_s": float(means[1]), "ratio": float(means[1] / means[0]), "bound": 1.3,
            "runs": runs}  # fmt: skip


def instant_agent() -> Any:
    return text_agent(ScriptedChatModel(respond=lambda messages: f"Thought: {len(messages)}\nAction: 1"))


async def cpu_time(
    schedule: Schedule, n_particles: int, n_steps: int, pairs: int, bound: float | None = 1.35
) -> dict[str, Any]:
    """Measure ratios of CPU time, each of a pair of consecutive runs."""
    agent = instant_agent()
    graph = as_particles(agent, schedule, n_particles, n_steps, seed=0)
    await bare(agent)
    await as_particles(agent, schedule).ainvoke(INPUT)
    times = []
    # Exclude imported objects from garbage collection: a full collection costs as much as half a run.
    gc.collect()
    gc.freeze()
    for _ in range(pairs):
        gc.collect()
        alone = await seconds(lambda: bare(agent, n_particles, n_steps), time.process_time)
        gc.collect()
        times.append([alone, await seconds(lambda: wrapped(graph), time.process_time)])
    gc.unfreeze()
    ratios = np.array(times)[:, 1] / np.array(times)[:, 0]
    low, median, high = (float(quartile) for quartile in np.percentile(ratios, [25, 50, 75]))
    per_step_ms = 1e3 * float(np.median(times, axis=0)[0]) / (n_particles * n_steps)
    return {"bare_ms_per_step": per_step_ms, "ratio": median, "quartiles": [low, high], "pairs": pairs, "bound": bound}


async def growth(runs: int) -> dict[str, dict[str, Any]]:
    """Measure the instant model at several N and T, the largest sizes least often."""
    rows = {}
    sizes = ((15, 10, 1.0, 1.5), (15, 50, 0.4, 1.35), (15, 200, 0.1, 1.35), (500, 10, 0.1, 1.35))
    for n_particles, n_steps, share, bound in sizes:
        every_ten = AtSteps(*range(4, n_steps, 10))
        name = f"instant model, N = {n_particles}, T = {n_steps}"
        rows[name] = await cpu_time(every_ten, n_particles, n_steps, max(3, round(share * runs)), bound)
    rows["instant model, never"] = await cpu_time(Never(), N, T, max(3, runs))
    rows["instant model, every step, T = 50"] = await cpu_time(EveryStep(), N, 50, max(3, runs // 10), None)
    return rows


async def peak_per_message(n_steps: int) -> float:
    """Measure the peak of allocated bytes per message, in a run with half as many particles."""
    n_particles = N // 2
    graph = as_particles(instant_agent(), AtSteps(*range(4, n_steps, 10)), n_particles, n_steps, seed=0)
    gc.collect()
    tracemalloc.start()
    await wrapped(graph)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (2 * n_particles * n_steps)


async def memory() -> dict[str, float]:
    await peak_per_message(T)
    short, long = await peak_per_message(25), await peak_per_message(100)
    return {"bytes_per_message_t25": short, "bytes_per_message_t100": long, "ratio": long / short, "bound": 1.0}


@contextmanager
def local_server() -> Iterator[str]:
    """Start the server in its own process and yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("local_server.py")), str(port_file)])
        try:
            for _ in range(100):
                if port_file.exists() and port_file.read_text():
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port_file.read_text()}/v1"
        finally:
            server.terminate()
            server.wait()


async def measure(runs: int) -> dict[str, dict[str, Any]]:
    with local_server() as url:
        return {
            **await growth(runs),
            "memory": await memory(),
            "100 ms": await constant_latency(url, max(3, runs // 6)),
            "log-normal, sigma 0.8": await lognormal_latency(url, runs),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    results = asyncio.run(measure(parser.parse_args().runs))
    print(json.dumps(results, indent=2))
    return int(any(row["bound"] is not None and row["ratio"] > row["bound"] for row in results.values()))


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)  # The particles are identical on purpose.
    sys.exit(main())
