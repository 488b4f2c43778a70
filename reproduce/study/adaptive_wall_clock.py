"""Measured latency of adaptive runs beside a plain run, when every model call is an HTTP request that takes 100 ms.

    python reproduce/study/adaptive_wall_clock.py --tasks 60

The requests go to the server of the benchmarks, in a process of its own. It knows nothing of the world, so the answers
are computed in this process. To keep this computation out of the measurement, each run is made twice with the same
seed: the first run, without requests, fills a memory of answers, and the second, which is timed, reads from it. What is
left is what a user of a model server would wait for: the requests, the world, and the library. A task is run with all
methods, one after another, before the next task, so that all methods meet the same load of the machine. Resumes where
it was interrupted; writes docs/results/adaptive/wall_clock.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
from langchain_core.outputs import ChatResult

from amc_agents.bench.comparison import Comparison, ready_critic
from amc_agents.bench.methods import Method
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.runner import run_one
from amc_agents.files import JsonLinesFile
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.seeding import request_seed
from amc_agents.types import FloatArray
from benchmarks.overhead import local_server
from reproduce.study.adaptive import OUT, RULE, RULES, adaptive_amc, adaptive_best_of_n, chosen, plan
from reproduce.study.adaptive_latency import of_study

ROWS = OUT / "wall_clock.jsonl"


class Remote:
    """A server that takes 100 ms for each request, and the answers computed so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: httpx.AsyncClient | None = None
        """None: no requests are made."""
        self.answers: dict[Any, Any] = {}
        self.requests = self.misses = 0

    async def ask(self) -> None:
        """Wait for an answer of the server."""
        if self.client is not None:
            self.requests += 1
            body = {"messages": [{"role": "user", "content": "go on"}]}
            (await self.client.post(f"{self.url}/chat/completions", json=body)).raise_for_status()

    def known(self, key: Any) -> Any:
        """Return the remembered answer, or None."""
        answer = self.answers.get(key)
        self.misses += answer is None and self.client is not None
        return answer


class RemotePolicy(EmbeddedChatModel):
    """The policy behind the server."""

    remote: Any = None

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        seed = request_seed(kwargs.pop("seed", None), self.seed)
        key = (seed, self.temperature, tuple(message.text for message in messages))
        await self.remote.ask()
        answer = self.remote.known(key)
        if answer is None:
            answer = self.remote.answers[key] = self._generate(messages, stop, None, seed=seed, **kwargs)
        return ChatResult.model_validate(answer.model_copy(deep=True))


class RemoteCritic:
    """The critic behind the server: a request for each batch."""

    def __init__(self, critic: Any, remote: Remote) -> None:
        self._critic, self._remote = critic, remote
        self.predicts = critic.predicts

    async def values(self, trajectories: Any) -> FloatArray:
        """Return the critic's values."""
        key = tuple(
            (each.task.id, tuple((step.action, step.observation) for step in each.steps)) for each in trajectories
        )
        await self._remote.ask()
        answer: FloatArray | None = self._remote.known(key)
        if answer is None:
            answer = self._remote.answers[key] = await self._critic.values(trajectories)
        copy: FloatArray = answer.copy()
        return copy


def methods_compared() -> list[Method]:
    """List the plain run, N = 15, and the rules from 4 particles."""
    settings = chosen()
    rules = [rule for rule in RULES if rule.start == RULE.start]
    amc = [adaptive_amc(settings["amc"], rule) for rule in rules]
    return [*of_study(), *amc, adaptive_best_of_n(settings["best-of-n"])]


async def timed(comparison: Comparison, task: Any, method: Method, remote: Remote) -> dict[str, Any]:
    """Run a method twice, and measure the second run."""
    remote.answers.clear()
    remote.client = None
    await run_one(comparison, 0, task, method)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as client:
        remote.client, remote.requests, remote.misses = client, 0, 0
        began, cpu = time.perf_counter(), time.process_time()
        await run_one(comparison, 0, task, method)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "method": method.name, "task": task.id, "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3),
        "requests": remote.requests, "computed": remote.misses, "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip


async def measure(url: str, n_tasks: int) -> None:
    """Measure what is missing of the first held-out tasks."""
    compared = methods_compared()
    described = plan(compared, split="test")
    known, remote = described.comparison(), Remote(url)
    comparison = Comparison(
        policy=lambda temperature: RemotePolicy(model=described.policy, temperature=temperature, remote=remote),
        environment=known.environment, tasks=known.tasks[:n_tasks], methods=compared, n_particles=15,
        critic=RemoteCritic(ready_critic(described.critic_spec), remote), horizon=known.horizon,
        agent=plain_text_agent,
    )  # fmt: skip
    measured = {(row["method"], row["task"]) for row in rows()}
    with JsonLinesFile(ROWS) as file:
        for task in comparison.tasks:
            for method in compared:
                if (method.name, task.id) not in measured:
                    file.append(row := await timed(comparison, task, method, remote))
                    print(row, flush=True)


def rows(path: Path = ROWS) -> list[dict[str, Any]]:
    """Read the measurements."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Start the server and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60)
    options = parser.parse_args()
    with local_server() as url:
        asyncio.run(measure(url, options.tasks))


if __name__ == "__main__":
    main()
