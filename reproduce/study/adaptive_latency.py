"""Latency of adaptive runs beside a plain run, if every model call took a random time.

    python reproduce/study/adaptive_latency.py

The model is computed in this process, where N particles take N times as long as one, unlike behind an API. So each
call of the policy, and each batch of the critic, waits for a lognormal time with a median of 1 s and a 95th percentile
of 2.3 s, on an event loop whose clock advances only by waiting: computation takes no time, and all calls run side by
side. Writes docs/results/adaptive/latency.json.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import zlib
from typing import Any

import numpy as np
from langchain_core.outputs import ChatResult

from amc_agents.bench import methods
from amc_agents.bench.comparison import Comparison, ready_critic
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.runner import run_one
from amc_agents.files import replace_file
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.smc import Adaptive
from reproduce.study.adaptive import OUT, adaptive_amc, adaptive_best_of_n, chosen, plan

N_TASKS = 60
MEDIAN_S, SIGMA = 1.0, 0.5
_luck = np.random.default_rng(0)


async def call() -> None:
    """Wait as long as a call takes."""
    await asyncio.sleep(MEDIAN_S * float(np.exp(SIGMA * _luck.normal())))


class SlowPolicy(EmbeddedChatModel):
    """The policy behind an API."""

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        await call()
        return self._generate(messages, stop, None, **kwargs)


class SlowCritic:
    """The critic behind an API."""

    def __init__(self, critic: Any) -> None:
        self._critic = critic
        self.predicts = critic.predicts

    async def values(self, trajectories: Any) -> Any:
        """Return the critic's values after the time of a call."""
        await call()
        return await self._critic.values(trajectories)


class WaitingClock(selectors.DefaultSelector):
    """Advances the clock of its loop instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready; else let the time pass at once."""
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events:
            self.now += max(timeout, 0.0)
        return events


class WaitingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of its `WaitingClock`."""

    def __init__(self) -> None:
        self._clock = WaitingClock()
        super().__init__(self._clock)

    def time(self) -> float:
        """The seconds waited so far."""
        return self._clock.now


def of_study() -> list[Method]:
    """A plain run, and AMC and Best-of-N with 15 particles, at the settings of the study."""
    tuned = Tuned(0.6, (4, 8, 12), 0.1)
    return [methods.react(Tuned(0.6)), methods.amc(tuned), methods.best_of_n(Tuned(0.6, beta=0.1))]


def main() -> None:
    """Run the methods on the first held-out tasks, one run after the other."""
    settings = chosen()
    compared = [
        *of_study(),
        adaptive_amc(settings["amc"]),
        adaptive_amc(settings["amc"], Adaptive(2, 32)),
        adaptive_best_of_n(settings["best-of-n"]),
        adaptive_best_of_n(settings["best-of-n"], Adaptive(2, 32)),
    ]
    described = plan(compared, split="test")
    known = described.comparison()
    comparison = Comparison(
        policy=lambda temperature: SlowPolicy(model=described.policy, temperature=temperature),
        environment=known.environment, tasks=known.tasks[:N_TASKS], methods=compared, n_particles=15,
        critic=SlowCritic(ready_critic(described.critic_spec)), horizon=known.horizon, agent=plain_text_agent,
    )  # fmt: skip
    with asyncio.Runner(loop_factory=WaitingLoop) as runner:
        rows = {method.name: runner.run(_seconds(comparison, method)) for method in compared}
    facts = {
        "tasks": N_TASKS, "median_call_s": MEDIAN_S, "sigma": SIGMA,
        "methods": {
            name: {"median": float(np.median(row)), "p95": float(np.percentile(row, 95)), "mean": float(np.mean(row))}
            for name, row in rows.items()
        },
    }  # fmt: skip
    replace_file(OUT / "latency.json", json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts["methods"], indent=1))


async def _seconds(comparison: Comparison, method: Method) -> list[float]:
    """Return the duration of each run."""
    global _luck
    seconds = []
    for task in comparison.tasks:
        _luck = np.random.default_rng(zlib.crc32(f"{method.name} {task.id}".encode()))
        started = asyncio.get_running_loop().time()
        await run_one(comparison, 0, task, method)
        seconds.append(asyncio.get_running_loop().time() - started)
    return seconds


if __name__ == "__main__":
    main()
