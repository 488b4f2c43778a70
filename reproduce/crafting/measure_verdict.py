"""Compare LAC with ReAct, greedy play and votes in the crafting world, with the embedded policy and a verdict critic.

    python reproduce/crafting/measure_verdict.py [--tasks 100] [--seeds 0] [--ks 5 15] [--alphas 0.5 1 2]

Tasks are of the split "train", from `--first` on, which nothing else uses. The seed of a decision's samples depends on
task, seed and step, so that methods see the same samples at the same state. Intervals are paired over tasks. `planner`
is the upper bound: a critic that uses the world's planner.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, HumanMessage
from rich.console import Console
from rich.table import Table

from amc_agents.critics.render import turn
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.embedded import EmbeddedVerdictReader
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.lac.decision import decide
from amc_agents.lac.types import LacSettings
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.runtime.inner_calls import ChatActor
from amc_agents.training.verdict.labelling import CraftingLabels
from amc_agents.types import FloatArray, Step, Task, Trajectory

HORIZON = 20
FIRST_TASK = 600_000


class Planner:
    """A perfect critic: log-odds from the world's planner."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[K]` 20 for a GOOD last step, -20 otherwise."""
        return np.array([20.0 if CraftingLabels()(trajectory)[-1] == "GOOD" else -20.0 for trajectory in trajectories])


@dataclass(frozen=True)
class Compared:
    """A method, with its settings."""

    name: str
    settings: LacSettings
    temperature: float
    critic: Any = None


async def play(task: Task, method: Compared, seed: int) -> tuple[bool, int]:
    """Play a task; return success and number of steps."""
    world = CraftingWorld()
    await world.reset(task)
    trajectory = Trajectory(task)
    messages: list[Any] = [HumanMessage(task.instruction)]
    for number in range(HORIZON):
        step_seed = int(np.random.SeedSequence([seed, number, zlib.crc32(task.id.encode())]).generate_state(1)[0])
        actor = ChatActor(EmbeddedChatModel(temperature=method.temperature, seed=step_seed), messages)
        chosen = (await decide(trajectory, actor, method.critic, method.settings)).sample
        answer = await world.step(chosen.action)
        step = Step(chosen.action, answer.observation, chosen.thought, answer.reward)
        trajectory = trajectory.extended(step, done=answer.done)
        messages = [*messages, AIMessage(turn(step)), HumanMessage(answer.observation)]
        if answer.done:
            break
    return trajectory.return_ > 0, len(trajectory.steps)


async def outcomes(tasks: Sequence[Task], method: Compared, seeds: Sequence[int], n_concurrent: int = 50) -> FloatArray:
    """Play all tasks: `[tasks, seeds]`, 1 for a success."""
    limit = asyncio.Semaphore(n_concurrent)

    async def succeeds(task: Task, seed: int) -> bool:
        async with limit:
            return (await play(task, method, seed))[0]

    successes = await asyncio.gather(*(succeeds(task, seed) for task in tasks for seed in seeds))
    return np.array(successes, dtype=np.float64).reshape(len(tasks), len(seeds))


def compared(options: argparse.Namespace) -> list[Compared]:
    """List the methods to compare."""
    if options.adapter:
        reader = EmbeddedVerdictReader(model_folder("crafting"), options.adapter)
        critic: Any = VerdictCritic(reader)
    else:
        critic = parse_critic(options.critic)
    methods = [Compared("greedy", LacSettings(k=1, use_critic=False), 0.0)]
    for t in options.temperatures:
        methods.append(Compared(f"sampled T={t}", LacSettings(k=1, use_critic=False), t))
        for k in options.ks:
            name = f"K={k} T={t}"
            methods.append(Compared(f"vote {name}", LacSettings(k=k, use_critic=False), t))
            methods.append(Compared(f"vote+greedy {name}", LacSettings(k=k, use_critic=False, greedy=True), t))
            for alpha in options.alphas:
                settings = LacSettings(k=k, alpha=alpha, greedy=True)
                methods.append(Compared(f"LAC alpha={alpha} {name}", settings, t, critic))
            if options.planner:
                methods.append(Compared(f"planner {name}", LacSettings(k=k, greedy=True), t, Planner()))
    return methods


def main() -> None:
    """Play all methods, print the table, and save the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--critic", default="verdict:embedded:crafting")
    parser.add_argument("--adapter", type=Path, help="folder of a verdict adapter, instead of --critic")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--first", type=int, default=FIRST_TASK)
    parser.add_argument("--band", type=int, nargs=2, default=[6, 14], metavar=("LOW", "HIGH"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ks", type=int, nargs="+", default=[5, 15])
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0])
    parser.add_argument("--planner", action="store_true", help="add the perfect critic")
    parser.add_argument("--out", type=Path, help="JSON file for the outcomes")
    options = parser.parse_args()
    low, high = options.band
    tasks = list(generate_tasks(options.tasks, "train", first_seed=options.first, optimal_steps=(low, high)))
    outcomes_of: dict[str, FloatArray] = {}
    for method in compared(options):
        start = time.perf_counter()
        outcomes_of[method.name] = asyncio.run(outcomes(tasks, method, options.seeds))
        print(
            f"{method.name}: {outcomes_of[method.name].mean():.3f} in {time.perf_counter() - start:.0f} s", flush=True
        )
    # The baseline is the best method without a critic. Its choice by these outcomes favours it.
    plain = [name for name in outcomes_of if name.startswith(("greedy", "vote"))]
    best = max(plain, key=lambda name: outcomes_of[name].mean())
    table = Table("method", "success", f"against {best}")
    for name, outcome in outcomes_of.items():
        mean, error = _estimate(outcome.mean(axis=1))
        gain, gain_error = _estimate((outcome - outcomes_of[best]).mean(axis=1))
        table.add_row(name, f"{mean:.3f} +- {error:.3f}", f"{gain:+.3f} +- {gain_error:.3f}")
    Console(width=110).print(table)
    if options.out:
        kept = {name: outcome.tolist() for name, outcome in outcomes_of.items()}
        options.out.write_text(json.dumps({"settings": vars(options) | {"out": None}, "outcomes": kept}) + "\n")


def _estimate(values: FloatArray) -> tuple[float, float]:
    """Mean over tasks and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
