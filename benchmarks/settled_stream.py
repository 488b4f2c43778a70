"""Measure when a reader of `stream_mode="messages"` sees the answer begin: `emit="settled"` against `emit="end"`.

    python benchmarks/settled_stream.py [--runs 5]

The policy is behind a local HTTP server that answers in 100 ms; T = 20 steps, N = 15 particles, and one alone, whose
answers the server streams word by word. The reward of a step is uniform between 0 and 4, drawn for each particle;
without a critic, the weights are those of the return so far, and beta decides how sharply they select. Prints JSON:
medians over seeds of the seconds to the first message (for one particle: to the first token) and, measured in turn, of
the seconds to the first message under `emit="end"`; their ratio; and the share of the answer's messages that were
shown before the run's end. There are no bounds: how early particles share a past depends on the weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from typing import Any, NamedTuple

import numpy as np
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from amc_agents import AmcSettings
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.settings import Emission
from amc_agents.smc import AtSteps, EveryStep, Schedule
from amc_agents.types import TimeStep
from benchmarks.overhead import INPUT, TASK, N, Walk, local_server

T = 20
CASES: tuple[tuple[int, Schedule, float], ...] = (
    (N, AtSteps(4), 1.0),
    (N, AtSteps(4, 8, 12, 16), 4.0),
    (N, AtSteps(4, 8, 12, 16), 1.0),
    (N, AtSteps(4, 8, 12, 16), 0.25),
    (N, EveryStep(), 1.0),
    (1, AtSteps(4), 1.0),
)
"""Number of particles, schedule and beta."""


class Seeded(Walk):
    """A walk whose rewards are drawn from its own seed."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(T)
        self.rng = rng

    async def step(self, action: str) -> TimeStep:
        self.taken += 1
        answer = TimeStep.termination if self.taken == self.length else TimeStep.transition
        return answer("there", float(self.rng.uniform(0, 4)))

    async def fork(self, seed: int) -> Seeded:
        copy = Seeded(np.random.default_rng(seed))
        copy.taken = self.taken
        return copy


class Seen(NamedTuple):
    """What a reader saw, in seconds from the call."""

    first_s: float
    early: float
    """Share of the messages that came before the end."""


async def watch(agent: Any, case: tuple[int, Schedule, float], emit: Emission, seed: int) -> Seen:
    """Read the messages of a run as a user interface does."""
    n_particles, schedule, beta = case
    worlds = iter(np.random.default_rng(seed).spawn(n_particles))
    graph = amc(agent, environment=lambda state: (Seeded(next(worlds)), TASK), n_particles=n_particles,
                resample=schedule, beta=beta, horizon=T + 1, seed=seed, settings=AmcSettings(emit=emit))  # fmt: skip
    started, first, early, shown = time.perf_counter(), 0.0, 0, set[str]()
    async for mode, event in graph.astream(INPUT, stream_mode=["messages", "custom"]):
        if mode == "messages":
            first = first or time.perf_counter() - started
            shown.add(event[0].id)
        elif event["type"] == "amc.run":
            early = len(shown)
    return Seen(first, early / len(shown))


async def row(agent: Any, case: tuple[int, Schedule, float], runs: int) -> dict[str, float]:
    settled, at_end = [], []
    for seed in range(runs):
        settled.append(await watch(agent, case, "settled", seed))
        at_end.append(await watch(agent, case, "end", seed))
    first, waiting = (float(np.median([seen.first_s for seen in rows])) for rows in (settled, at_end))
    early = float(np.median([seen.early for seen in settled]))
    return {"first_s": first, "end_s": waiting, "ratio": first / waiting, "shown_before_the_end": early}


async def measure(runs: int) -> dict[str, dict[str, float]]:
    with local_server() as url:
        agent = text_agent(ChatOpenAI(base_url=url, api_key=SecretStr("none"), model="local"))
        await watch(agent, CASES[0], "end", 0)
        return {f"N = {case[0]}, {case[1]}, beta = {case[2]:g}": await row(agent, case, runs) for case in CASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    print(json.dumps(asyncio.run(measure(parser.parse_args().runs)), indent=2))


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)  # The particles say the same on purpose.
    main()
