"""Play the bank of runs from which simulated deployments are drawn: crafting as production, with the shipped models.

    nice -n 15 python reproduce/rollout/make_bank.py

For each task of two bands of difficulty, the bank holds answers of the plain agent, of AMC with the shipped critic, and
of AMC with the negated critic. No run sees a reward; the outcome is whether the item was crafted. One line per run:
[band, task, arm, seed, outcome, the critic's value of the answer, policy calls, tokens]. An interrupted run of this
script continues where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amc_agents import AmcSettings, AtSteps, Task, Trajectory, amc, parse_critic, text_agent
from amc_agents.bench.runner import run_seed
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.files import JsonLinesFile
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.types import FloatArray

BANK = Path(__file__).with_name("bank.jsonl")
BANDS = {"easy": (6, 8), "hard": (10, 12)}
N_TASKS, TEMPERATURE, HORIZON, N_PARTICLES = 40, 0.9, 20, 4
RUNS = {"plain": 10, "better": 5, "harmful": 5}
"""Runs of each task by arm."""


class Negated:
    """The shipped critic with the opposite sign: it prefers the worst particle."""

    predicts = "return"

    def __init__(self) -> None:
        self._critic: Any = parse_critic("embedded:crafting")

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return the negated values."""
        values: FloatArray = -(await self._critic.values(trajectories))
        return values


def arms() -> dict[str, Any]:
    """Return the graph's settings by arm."""
    particles = {"n_particles": N_PARTICLES, "resample": AtSteps(4, 8), "beta": 0.1}
    return {
        "plain": {"critic": "embedded:crafting", "n_particles": 1},
        "better": {"critic": "embedded:crafting", **particles},
        "harmful": {"critic": Negated(), **particles},
    }


async def play(agent: Any, arm: str, settings: Any, task: Task, seed: int) -> list[Any]:
    """Run one arm on one task."""
    graph = amc(
        agent,
        **settings,
        environment=lambda _: (CraftingWorld(), task),
        settings=AmcSettings(hide_rewards=True),
        horizon=HORIZON,
        seed=run_seed(seed, task.id, arm),
    )
    run = await graph.arun({"messages": [("user", task.instruction)]})
    await run.aclose()
    value = float(run.population.values[run.best_index])
    usage = run.usage["policy"]
    return [arm, seed, run.best.return_, round(-value if arm == "harmful" else value, 4), usage.calls, usage.tokens]


async def main() -> None:
    """Play what the bank lacks, eight runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=N_TASKS, help="per band")
    n_tasks = parser.parse_args().tasks
    logging.disable(logging.WARNING)
    agent, settings, places = text_agent(EmbeddedChatModel(temperature=TEMPERATURE)), arms(), asyncio.Semaphore(8)
    lines = BANK.read_text().splitlines() if BANK.exists() else []
    done = {tuple(json.loads(line)["run"][:4]) for line in lines if line.endswith("}")}
    with JsonLinesFile(BANK) as bank:

        async def one(band: str, task: Task, arm: str, seed: int) -> None:
            async with places:
                bank.append({"run": [band, task.id, *await play(agent, arm, settings[arm], task, seed)]})

        await asyncio.gather(
            *(
                one(band, task, arm, seed)
                for seed in range(max(RUNS.values()))
                for band, optimal in BANDS.items()
                for task in generate_tasks(n_tasks, "rollout", optimal_steps=optimal)
                for arm, n_runs in RUNS.items()
                if seed < n_runs and (band, task.id, arm, seed) not in done
            )
        )


if __name__ == "__main__":
    asyncio.run(main())
