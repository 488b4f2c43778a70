"""Measure durable points: their bytes, and the time of a run with them.

    python benchmarks/durable.py [--runs 10]

Bytes: all points of a run in an SQLite file, divided by what LangGraph's serialiser needs for the particles' own
threads: their newest checkpoints at the end, with each message counted once (siblings share their past). Bound 2.
Points also hold what no thread does: weights, random states, worlds, and the particles that were pruned.

Time: the median wall time of a run with `SqliteSaver` in a file, divided by that of the run without a checkpointer. A
plain outer checkpoint (one small graph, no particles) is part of it. The policy answers at once, or in 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from amc_agents.models.seeding import particle_rng
from amc_agents.population.features.durable.points import points_thread
from amc_agents.population.wrap import amc
from amc_agents.run import Run
from amc_agents.runtime.text_agent import text_agent
from amc_agents.runtime.world import use_environment
from amc_agents.smc import AtSteps, EveryStep, Schedule
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task, TimeStep

TASK = Task("walk", "Walk to the end of the road, and say what you see.")
INPUT = {"messages": [HumanMessage(TASK.instruction)]}
SERDE = JsonPlusSerializer()
WORDS = "road river bridge mill church field forest gate tower well hedge barn orchard meadow lane ferry".split()


class Walk:
    """A world of `length` steps, whose answers have about 60 words."""

    def __init__(self, length: int) -> None:
        self.length, self.taken = length, 0

    async def reset(self, task: Task) -> TimeStep:
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        self.taken += 1
        seen = f"step {self.taken}: " + " ".join(WORDS[(self.taken * k) % len(WORDS)] for k in range(60))
        reward = float(sum(map(ord, action)) % 5)
        answer = TimeStep.termination if self.taken == self.length else TimeStep.transition
        return answer(seen, reward)

    async def fork(self, seed: int) -> Walk:
        copy = Walk(self.length)
        copy.taken = self.taken
        return copy

    async def close(self) -> None:
        pass


def respond(messages: Sequence[BaseMessage]) -> str:
    """Answer in about 40 words."""
    rng = particle_rng()
    assert rng is not None
    return f"Thought: {' '.join(rng.choice(WORDS, 38))}\nAction: go to {rng.choice(WORDS)}"


def graph(n_particles: int, n_steps: int, schedule: Schedule, saver: Any, delay: float = 0.0, **more: Any) -> Any:
    return amc(
        text_agent(ScriptedChatModel(respond=respond, delay=delay)),
        environment=lambda state: (Walk(n_steps), TASK),
        n_particles=n_particles,
        resample=schedule,
        horizon=n_steps + 1,
        beta=10.0,
        seed=0,
        checkpointer=saver,
        **more,
    )


async def bytes_of_a_checkpoint() -> int:
    """Bytes of a bare agent's checkpoint without the values of its channels."""
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "bare"}}
    bare = text_agent(ScriptedChatModel(respond=lambda messages: "Action: go on"))
    with use_environment(Walk(10)):
        await bare.copy(update={"checkpointer": saver}).ainvoke(INPUT, config, durability="exit")
    saved = saver.get_tuple(config)
    assert saved is not None
    return len(SERDE.dumps_typed({**saved.checkpoint, "channel_values": {}})[1]) + len(json.dumps(saved.metadata))


async def bytes_of_threads(run: Run) -> int:
    """Bytes of the newest checkpoints of all particles, each message counted once."""
    messages: dict[int, BaseMessage] = {}
    total = len(run.outputs) * await bytes_of_a_checkpoint()
    for output in run.outputs:
        state = dict(output)
        messages.update({id(message): message for message in state.pop("messages")})
        total += len(SERDE.dumps_typed(state)[1])
    return total + sum(len(SERDE.dumps_typed(message)[1]) for message in messages.values())


async def bytes_of_points(n_particles: int, n_steps: int, schedule: Schedule) -> dict[str, Any]:
    """Measure the points of a run, and the threads of its particles."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "threads.db")
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            run = await graph(n_particles, n_steps, schedule, saver).arun(INPUT, {"configurable": {"thread_id": "t"}})
        database = sqlite3.connect(path)
        query = "SELECT length(checkpoint) + length(metadata) FROM checkpoints WHERE thread_id = ?"
        sizes = [size for (size,) in database.execute(query, (points_thread("t"),))]
        database.close()
    threads = await bytes_of_threads(run)
    return {"points": len(sizes), "bytes": sum(sizes), "bytes_of_threads": threads, "ratio": sum(sizes) / threads}


async def seconds(wrapped: Any, thread: str) -> float:
    gc.collect()
    started = time.perf_counter()
    await wrapped.ainvoke(INPUT, {"configurable": {"thread_id": thread}})
    return time.perf_counter() - started


async def time_of_points(
    n_particles: int, n_steps: int, schedule: Schedule, delay: float, runs: int, **more: Any
) -> dict[str, float]:
    """Measure pairs of consecutive runs without and with a checkpointer."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / "threads.db")) as saver:
            plain = graph(n_particles, n_steps, schedule, None, delay, **more)
            durable = graph(n_particles, n_steps, schedule, saver, delay, **more)
            pairs = [(await seconds(plain, f"{run}"), await seconds(durable, f"{run}")) for run in range(-1, runs)][1:]
            n_points = len(await durable.apoints({"configurable": {"thread_id": "0"}}))
    without, with_points = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"without_s": without, "with_s": with_points, "points": n_points,
            "ratio": statistics.median(late / early for early, late in pairs),
            "ms_per_point": 1e3 * (with_points - without) / n_points}  # fmt: skip


async def measure(runs: int) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, n_steps, schedule in (
        ("every 4 steps", 20, AtSteps(4, 8, 12, 16)),
        ("every 10 steps", 50, AtSteps(10, 20, 30, 40)),
        ("every step", 20, EveryStep()),
    ):
        rows[f"bytes, N = 15, T = {n_steps}, {name}"] = await bytes_of_points(15, n_steps, schedule)
    every_4 = AtSteps(4, 8, 12, 16)
    rows["time, N = 15, T = 20, every 4 steps, instant model"] = await time_of_points(15, 20, every_4, 0.0, runs)
    rows["time, N = 15, T = 20, every step, instant model"] = await time_of_points(15, 20, EveryStep(), 0.0, runs)
    rows["time, N = 15, T = 20, every 4 steps, 100 ms model"] = await time_of_points(
        15, 20, every_4, 0.1, max(2, runs // 3)
    )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    results = asyncio.run(measure(parser.parse_args().runs))
    print(json.dumps(results, indent=2))
    return int(any(row["ratio"] > 2.0 for name, row in results.items() if name.startswith("bytes")))


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)
    sys.exit(main())
