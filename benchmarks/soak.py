"""Look for leaks: many decisions and population runs on an instant model, in one process.

    python benchmarks/soak.py [--decisions 100000] [--runs 5000] [--concurrent 200]

1. Decisions: three LAC and one PNLC in turn, each about a text of its own, so that a cache of texts without a limit
   would grow.
2. Population runs of `amc` with a resampling: each has its own world and task; every second one by the sync entry
   point.
3. Concurrent runs: all at once on one loop, then all at once from as many threads.

During 1 and 2, the resident memory and the number of objects that the garbage collector tracks are sampled forty times,
each time after a full collection. The slope is that of a least-squares line through the last thirty samples, with a 95%
interval (Student's t). The first quarter is left out, in which modules load and caches fill up to their limits.
Descriptors, threads and tasks are counted half-way, when the pools of threads are full, and at the end; in 3, after the
first and after the second time.

The exit code is 1 if a slope's interval lies above its bound, or if a descriptor, a thread or a task is left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.messages import BaseMessage, HumanMessage

from amc_agents import AtSteps, Task, TimeStep, actor_critic_model, amc, critique_refine_model, text_agent
from amc_agents.config import Config
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Trajectory

_counter = itertools.count()
N_PARTICLES, LENGTH = 4, 4
N_SAMPLES, N_FITTED = 40, 30
T_95 = 2.048
"""Student's t at 97.5% for 28 degrees of freedom: 30 samples, a line of two parameters."""
BYTES_BOUND, OBJECTS_BOUND = 200.0, 0.1
"""Growth of a decision or a run that is called flat: a million add less than 200 MB and 100,000 objects."""


class Walk:
    """A world of a few steps, whose reward depends on the task and the step."""

    def __init__(self, seed: int) -> None:
        self.seed, self.taken = seed, 0

    async def reset(self, task: Task) -> TimeStep:
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        self.taken += 1
        reward = float((self.seed * 7 + self.taken * 3) % 5)
        observation = f"place {self.seed}.{self.taken}"
        last = self.taken == LENGTH
        return TimeStep.termination(observation, reward) if last else TimeStep.transition(observation, reward)

    async def fork(self, seed: int) -> Walk:
        copy = Walk(seed)
        copy.taken = self.taken
        return copy

    async def close(self) -> None:
        pass


class Goals:
    """A goal critic that takes the first goal for the likeliest."""

    async def reach(self, trajectory: Trajectory, thought: str, goals: list[str]) -> Any:
        return np.linspace(0.9, 0.1, len(goals))


def text_of(messages: Any) -> str:
    return str(messages[-1].text)


def answer(messages: Any) -> str:
    """Answer any prompt of LAC and PNLC."""
    text = text_of(messages)
    if "Goal:" in text:
        return "\n".join(f"Goal: place {number}.{next(_counter)}" for number in range(2))
    if "Decision:" in text:
        return "Diagnosis: It will work.\nDecision: KEEP"
    return f"Thought: {len(text)}\nAction: take {next(_counter) % 3}"


def value(trajectories: Any) -> list[float]:
    return [0.1 * len(trajectory.steps[-1].action) if trajectory.steps else 0.0 for trajectory in trajectories]


class Sample(NamedTuple):
    """What the process holds."""

    done: int
    resident: int
    objects: int


class Left(NamedTuple):
    """What must not be left behind."""

    descriptors: int
    threads: int
    tasks: int


def sample(done: int) -> Sample:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(done, pages * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects()))


def left() -> Left:
    return Left(len(os.listdir("/proc/self/fd")), threading.active_count(), len(asyncio.all_tasks()) - 1)


def slope(done: list[int], held: list[int]) -> dict[str, Any]:
    """Fit a line to the last samples: growth of one decision or run, with its 95% interval."""
    x, y = np.array(done[-N_FITTED:], dtype=float), np.array(held[-N_FITTED:], dtype=float)
    x_centred = x - x.mean()
    rate = float(x_centred @ y / (x_centred @ x_centred))
    residuals = y - y.mean() - rate * x_centred
    error = float(np.sqrt(residuals @ residuals / (len(x) - 2) / (x_centred @ x_centred)))
    return {"each": rate, "interval": [rate - T_95 * error, rate + T_95 * error], "first": held[0], "last": held[-1]}


async def repeat(total: int, act: Callable[[int], Awaitable[None]]) -> dict[str, Any]:
    """Act `total` times, one after another, and measure what grows and what is left."""
    started, every = time.perf_counter(), total // N_SAMPLES
    samples, counts = [], []
    for number in range(N_SAMPLES * every):
        await act(number)
        if (number + 1) % every == 0:
            samples.append(sample(number + 1))
            counts.append(left())
            print(samples[-1], counts[-1], file=sys.stderr, flush=True)
    done = [taken.done for taken in samples]
    return {
        "number": total,
        "seconds": time.perf_counter() - started,
        "bytes": slope(done, [taken.resident for taken in samples]) | {"bound": BYTES_BOUND},
        "objects": slope(done, [taken.objects for taken in samples]) | {"bound": OBJECTS_BOUND},
        "left": grown(counts[N_SAMPLES // 2], counts[-1]),
    }


def grown(before: Left, after: Left) -> dict[str, int]:
    return {name: getattr(after, name) - getattr(before, name) for name in Left._fields}


async def decisions(total: int) -> dict[str, Any]:
    policy = ScriptedChatModel(respond=answer)
    lac = actor_critic_model(policy, value, k=3, config=Config())
    pnlc = critique_refine_model(policy, Goals(), config=Config())

    async def decide(number: int) -> None:
        conversation: list[BaseMessage] = [HumanMessage(f"Task {number}: take what is worth most.")]
        await (pnlc if number % 4 == 3 else lac).ainvoke(conversation)

    return await repeat(total, decide)


def populations() -> Any:
    agent = text_agent(ScriptedChatModel(respond=answer))

    def world(state: Any) -> tuple[Walk, Task]:
        instruction = text_of(state["messages"][:1])
        return Walk(len(instruction)), Task(instruction, instruction)

    return amc(agent, environment=world, n_particles=N_PARTICLES, resample=AtSteps(2), horizon=LENGTH + 1, beta=2.0)


def start_of(number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"Walk {number}: take what is worth most.")]}


async def runs(total: int) -> dict[str, Any]:
    graph = populations()

    async def run(number: int) -> None:
        if number % 2:
            await asyncio.to_thread(graph.invoke, start_of(number))
        else:
            await graph.ainvoke(start_of(number))

    return await repeat(total, run)


async def concurrent(total: int) -> dict[str, Any]:
    """Make all runs at once, on this loop and from as many threads; then again, to see what the second time adds."""
    graph, loop = populations(), asyncio.get_running_loop()
    counts, seconds, results = [], [], []
    for _ in range(2):
        started = time.perf_counter()
        results += await asyncio.gather(*(graph.ainvoke(start_of(number)) for number in range(total)))
        seconds.append(time.perf_counter() - started)
        with ThreadPoolExecutor(total) as threads:
            calls = (loop.run_in_executor(threads, graph.invoke, start_of(number)) for number in range(total))
            results += await asyncio.gather(*calls)
        seconds.append(time.perf_counter() - started - seconds[-1])
        counts.append(left())
    complete = sum(len(result["messages"]) == 2 * LENGTH + 1 for result in results)
    return {"number": total, "complete": complete, "of": len(results), "seconds_on_a_loop": seconds[::2],
            "seconds_from_threads": seconds[1::2], "left": grown(*counts)}  # fmt: skip


async def measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    return {
        "decisions": await decisions(arguments.decisions),
        "population runs": await runs(arguments.runs),
        "concurrent runs": await concurrent(arguments.concurrent),
    }


def violated(row: dict[str, Any]) -> bool:
    grows = any(row[what]["interval"][0] > row[what]["bound"] for what in ("bytes", "objects") if what in row)
    return grows or any(count > 0 for count in row["left"].values()) or row.get("complete") != row.get("of")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--concurrent", type=int, default=200)
    results = asyncio.run(measure(parser.parse_args()))
    print(json.dumps(results, indent=2))
    return int(any(violated(row) for row in results.values()))


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)  # The particles are alike on purpose.
    sys.exit(main())
