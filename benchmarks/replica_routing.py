"""Prefix-cache hit rate of several value servers under ways to route, in a simulator of vLLM's block cache.

    python benchmarks/replica_routing.py [--tasks 40] [--url URL --url URL --checkpoint FOLDER]

The prompts are real: those that AMC asks the shipped value model in the crafting world (15 particles), recorded call by
call. Tasks run side by side. The caches are simulated (`block_cache.py`), and first checked against counts that were
measured on a vLLM server. Target: with 4 replicas, routing by task keeps at least 90% of the hit rate of one replica
of the same size. Exits with 1 if the target is missed.

With --url, the recorded calls are also sent to running servers of the shipped value model (`amc serve value crafting`),
and the counts of their /metrics are printed beside those of the simulator.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

from amc_agents import AmcSettings, AtSteps, EveryStep, amc, text_agent
from amc_agents.critics.render import Batch
from amc_agents.critics.server.served import tokenizer_of
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.critics.value.pooling import CONTROL_TOKENS, VLLMCritic, session_of
from amc_agents.critics.value.replicas import ReplicatedCritic, ranked
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.smc import Schedule
from amc_agents.types import FloatArray, Task, Trajectory
from benchmarks.block_cache import BlockCache

TARGET = 0.9
N_REPLICAS = 4
BLOCK = 32
"""Block size of `amc serve` on a CPU."""
Call = Sequence[Trajectory]
"""The trajectories of one request."""
Route = Callable[[str, int], int]
"""(session of a call, number of the call) -> replica."""
MEASURED = ((128, 1438), (32, 606))
"""Block size -> computed tokens of an episode of 20 growing texts of 3,486 tokens on vLLM 0.32's CPU build."""


class Recorder:
    """The shipped value model, which remembers what it was asked."""

    predicts = "return"

    def __init__(self) -> None:
        self.critic = EmbeddedCritic(model_folder("crafting"))
        self.calls: list[Call] = []

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        self.calls.append(tuple(trajectories))
        return await self.critic.values(trajectories)


def record(n_tasks: int, first: int, resample: Schedule) -> list[list[Call]]:
    """Play tasks, and return the critic's calls of each."""
    played = []
    tasks = generate_tasks(n_tasks, "benchmark", first_seed=first, optimal_steps=(8, 16))
    for number, task in enumerate(tasks):
        recorder = Recorder()

        def environment(state: Any, task: Task = task) -> tuple[CraftingWorld, Task]:
            return CraftingWorld(), task

        graph = amc(
            text_agent(EmbeddedChatModel(temperature=0.8)), recorder, n_particles=15, resample=resample, horizon=20,
            environment=environment, settings=AmcSettings(hide_rewards=True), beta=0.1, seed=number,
        )  # fmt: skip
        graph.run({"messages": [("user", task.instruction)]})
        played.append(recorder.calls)
    return played


def side_by_side(played: Sequence[list[Call]], abreast: int) -> Iterator[Call]:
    """Yield the calls of several tasks that are in progress at the same time, in a random order."""
    rng = random.Random(0)
    waiting = [iter(calls) for calls in played]
    active: list[Iterator[Call]] = []
    while waiting or active:
        while waiting and len(active) < abreast:
            active.append(waiting.pop(0))
        task = rng.choice(active)
        call = next(task, None)
        if call is None:
            active.remove(task)
        else:
            yield call


def by_task(names: Sequence[str]) -> Route:
    """Route as `ReplicatedCritic` does."""
    return lambda session, number: ranked(session, names)[0]


def routes() -> dict[str, Route]:
    """Ways to route a call to one of `N_REPLICAS`."""
    names, rng = [f"http://replica-{number}" for number in range(N_REPLICAS)], random.Random(1)
    return {
        "one replica": lambda session, number: 0,
        "by task": by_task(names),
        "in turn": lambda session, number: number % N_REPLICAS,
        "at random": lambda session, number: rng.randrange(N_REPLICAS),
    }


def simulated(prompts: Sequence[tuple[str, list[list[int]]]], route: Route, n_blocks: int) -> tuple[float, int, int]:
    """Return the hit rate, prompt tokens and cached tokens of all replicas."""
    caches = [BlockCache(n_blocks, BLOCK) for _ in range(N_REPLICAS)]
    for number, (session, rows) in enumerate(prompts):
        cache = caches[route(session, number)]
        for row in rows:
            cache.compute(row)
    asked, cached = (sum(getattr(cache, name) for cache in caches) for name in ("prompt_tokens", "cached_tokens"))
    return cached / asked, asked, cached


def prompts_of(calls: Iterator[Call]) -> list[tuple[str, list[list[int]]]]:
    """Return the session and the token ids of each call's distinct prompts."""
    folder = model_folder("crafting")
    encoder = ValueCheckpoint.load(folder / "value").encoder(tokenizer_of(folder))
    return [
        (
            session_of(call[0]),
            [[token for part in prompt for token in part] for prompt in Batch.of(encoder, call).prompts],
        )
        for call in calls
    ]


def check_against_measurement() -> None:
    """Print what the simulator computes of the episode that was measured on a server."""
    for block_size, measured in MEASURED:
        cache = BlockCache(10_000, block_size)
        # Only the sum of the lengths and the last length were written down: here they grow evenly.
        computed = sum(cache.compute(range(round(22.6 + 303.4 * step / 19))) for step in range(20))
        print(f"blocks of {block_size}: {computed} of {cache.prompt_tokens} tokens computed, measured {measured}")


async def served(played: Sequence[list[Call]], urls: Sequence[str], abreast: int, folder: str) -> tuple[int, int]:
    """Send the calls to running servers, and return the prompt and cached tokens that their metrics count."""
    critic = ReplicatedCritic([VLLMCritic(url, checkpoint=folder) for url in urls])
    await critic.connect()
    before = [await counted(url) for url in urls]
    for call in side_by_side(played, abreast):
        await critic.values(call)
    after = [await counted(url) for url in urls]
    return tuple(sum(a[i] - b[i] for a, b in zip(after, before, strict=True)) for i in (0, 1))  # type: ignore[return-value]


async def counted(url: str) -> tuple[int, int]:
    """Return the prompt tokens and cached tokens of a server so far."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    found = [
        re.search(rf"^vllm:prefix_cache_{name}_total{{.*}} ([0-9.e+]+)", text, re.M) for name in ("queries", "hits")
    ]
    asked, hit = (int(float(match.group(1))) if match else 0 for match in found)
    return asked, hit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--abreast", type=int, default=16, help="tasks in progress at the same time")
    parser.add_argument("--url", action="append", default=[], help="a running server of the shipped value model")
    parser.add_argument("--checkpoint", default="", help="folder of the served model, for --url")
    arguments = parser.parse_args()
    check_against_measurement()
    missed = False
    schedules: tuple[Schedule, ...] = (AtSteps(4, 8, 12), EveryStep())
    for number, schedule in enumerate(schedules):
        # Other tasks for each schedule, so that a running server knows none of them.
        played = record(arguments.tasks, arguments.first + number * arguments.tasks, schedule)
        prompts = prompts_of(side_by_side(played, arguments.abreast))
        for n_blocks in (100_000, 400, 150):
            rates = {name: simulated(prompts, route, n_blocks)[0] for name, route in routes().items()}
            shown = ", ".join(f"{name} {rate:.1%}" for name, rate in rates.items())
            print(f"{schedule}, {n_blocks} blocks of {BLOCK} per replica: {shown}")
            missed |= rates["by task"] < TARGET * rates["one replica"]
        if arguments.url:
            asked, hit = asyncio.run(served(played, arguments.url, arguments.abreast, arguments.checkpoint))
            print(f"{schedule}: {len(arguments.url)} servers: {hit} of {asked} tokens cached ({hit / asked:.1%})")
            _, asked, hit = simulated(prompts, by_task([f"vllm:{url}" for url in arguments.url]), 100_000)
            print(f"  simulated: {hit} of {asked} + {CONTROL_TOKENS * len(prompts)} tokens of control prompts")
    if missed:
        sys.exit(f"missed: routing by task keeps less than {TARGET:.0%} of the hit rate of one replica")


if __name__ == "__main__":
    main()
