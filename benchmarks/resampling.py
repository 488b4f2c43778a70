"""Measure the time of a resampling: its arithmetic, and the forks of real agents.

    python benchmarks/resampling.py

Prints JSON. The exit status is 1 if a target is missed.

1. "schemes": weigh 1,000 particles of 50 steps, draw ancestors and pass trajectories on by reference. Median and worst
   time of many repetitions in milliseconds. No agent is forked.
2. "forks": the `resample` node of `amc` over real LangGraph agents in worlds that fork by copy, at steps 10, 50, 200.
   CPU time for each fork without garbage collection. It covers stopping the ancestors' agents, their checkpoints, the
   copies, the worlds, and releasing the particles that were not drawn. Agents restart in their next step, which
   `overhead.py` measures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from langchain_core.messages import HumanMessage

from amc_agents.population import nodes
from amc_agents.population.loop import resample as resample_population
from amc_agents.population.system import ParticleSystem
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import SCHEMES, AtSteps, init, resample, weigh
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step, Task, TimeStep, Trajectory

TARGET_MS = 10.0
FORK_TARGET_MS = 3.0
TASK = Task("benchmark", "Do the thing.")


def population(n_particles: int, n_steps: int) -> list[Trajectory]:
    """Make particles with different histories."""
    return [
        Trajectory(TASK, tuple(Step(f"act {particle} {step}", "Done. " * 20) for step in range(n_steps)))
        for particle in range(n_particles)
    ]


def one_resampling(
    rng: np.random.Generator, trajectories: list[Trajectory], potentials: np.ndarray, scheme: str
) -> tuple[list[Trajectory], list[tuple[int, int]]]:
    """Weigh and resample; return the new population and the (source, slot) pairs whose worlds must be forked."""
    state = weigh(init(len(trajectories)), potentials)
    finished = np.array([trajectory.done for trajectory in trajectories])
    _, info = resample(rng, state, finished, scheme)
    ancestors = info.ancestors.tolist()
    forks = [(source, slot) for slot, source in enumerate(ancestors) if source != slot]
    return [trajectories[source] for source in ancestors], forks


def arithmetic(scheme: str, n_particles: int, n_steps: int, repetitions: int) -> dict[str, float | int | bool]:
    """Measure one scheme in milliseconds."""
    rng = np.random.default_rng(0)
    trajectories = population(n_particles, n_steps)
    times = []
    for _ in range(repetitions):
        potentials = rng.normal(size=n_particles)
        start = time.perf_counter()
        survivors, forks = one_resampling(rng, trajectories, potentials, scheme)
        times.append(1e3 * (time.perf_counter() - start))
    originals = {id(trajectory) for trajectory in trajectories}
    assert all(id(trajectory) in originals for trajectory in survivors), "a trajectory was copied"
    median = float(np.median(times))
    return {
        "median_ms": round(median, 3),
        "worst_ms": round(max(times), 3),
        "forks": len(forks),
        "below_target": median < TARGET_MS,
    }


class Endless:
    """A world that never ends and pays no reward."""

    async def reset(self, task: Task) -> TimeStep:
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        return TimeStep.transition("Done. " * 20)

    async def fork(self, seed: int) -> Endless:
        return Endless()

    async def close(self) -> None:
        pass


class Uneven:
    """A critic whose values leave about a third of the particles without offspring."""

    async def values(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=len(trajectories))


async def real_forks(n_particles: int, step: int) -> dict[str, Any]:
    """Measure one resampling of real agents after `step` steps."""
    agent = text_agent(ScriptedChatModel(respond=lambda messages: f"Thought: {len(messages)}\nAction: go on"))
    graph = amc(agent, Uneven(), environment=lambda state: (Endless(), TASK), n_particles=n_particles,
                resample=AtSteps(step), horizon=step + 1, seed=0)  # fmt: skip
    measured: list[float] = []

    async def timed(system: ParticleSystem) -> str:
        gc.collect()
        gc.disable()
        started = time.process_time()
        then = await resample_population(system)
        measured.append(1e3 * (time.process_time() - started))
        gc.enable()
        return then

    with patch.object(nodes, "resample", timed):
        run = await graph.arun({"messages": [HumanMessage(TASK.instruction)]})
    ancestors = run.history[0].ancestors
    assert ancestors is not None
    n_forks = int((ancestors != np.arange(n_particles)).sum())
    per_fork = measured[0] / n_forks
    return {
        "step": step,
        "forks": n_forks,
        "cpu_ms": round(measured[0], 1),
        "cpu_ms_per_fork": round(per_fork, 3),
        "below_target": per_fork < FORK_TARGET_MS,
    }


def main() -> None:
    """Measure and print the tables as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--particles", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--agents", type=int, default=100)
    options = parser.parse_args()
    schemes = {
        name: arithmetic(name, options.particles, options.steps, options.repetitions) for name in sorted(SCHEMES)
    }
    asyncio.run(real_forks(10, 2))  # Warm-up: imports and caches.
    forks = [asyncio.run(real_forks(options.agents, step)) for step in (10, 50, 200)]
    settings = {"particles": options.particles, "steps": options.steps, "repetitions": options.repetitions}
    targets = {"target_ms": TARGET_MS, "fork_target_ms": FORK_TARGET_MS, "agents": options.agents}
    print(json.dumps({"benchmark": "resampling", **settings, **targets, "schemes": schemes, "forks": forks}, indent=2))
    if not all(row["below_target"] for row in [*schemes.values(), *forks]):
        raise SystemExit(1)


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)  # Identical particles are intended here.
    main()
