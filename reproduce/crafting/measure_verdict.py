"""LAC with a verdict critic against ReAct, greedy and votes, in the crafting world with the embedded policy.

    python reproduce/crafting/measure_verdict.py [--tasks 100] [--seeds 0] [--ks 5 15] [--alphas 0.5 1 2]

Tasks are of the split "train", from `--first` on, which nothing else uses. A decision's samples are drawn from a seed
of task, seed and step, so that methods that come by the same state see the same samples. Intervals are paired over
tasks. `planner` is the ceiling: a critic that asks the world's planner.
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
from amc_agents.lac.decision import LacSettings, decide
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.runtime.sampling_actor import ChatActor
from amc_agents.training.verdict.labels import CraftingLabels
from amc_agents.types import FloatArray, Step, Task, Trajectory

HORIZON = 20
FIRST_TASK = 600_000


class Planner:
    """Log-odds from the world's planner: what a perfect critic would say."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[K]` 20 for a GOOD last step, -20 for any other."""
        return np.array([20.0 if CraftingLabels()(one)[-1] == "GOOD" else -20.0 for one in trajectories])


@dataclass(frozen=True)
class Way:
    """One way to act."""

    name: str
    settings: LacSettings
    temperature: float
    critic: Any = None


async def play(task: Task, way: Way, seed: int) -> tuple[bool, int]:
    """One attempt: success, and steps made."""
    world = CraftingWorld()
    await world.reset(task)
    trajectory = Trajectory(task)
    messages: list[Any] = [HumanMessage(task.instruction)]
    for number in range(HORIZON):
        drawn = int(np.random.SeedSequence([seed, number, zlib.crc32(task.id.encode())]).generate_state(1)[0])
        actor = ChatActor(EmbeddedChatModel(temperature=way.temperature, seed=drawn), messages)
        chosen = (await decide(trajectory, actor, way.critic, way.settings)).sample
        answer = await world.step(chosen.action)
        step = Step(chosen.action, answer.observation, chosen.thought, answer.reward)
        trajectory = trajectory.extended(step, done=answer.done)
        messages = [*messages, AIMessage(turn(step)), HumanMessage(answer.observation)]
        if answer.done:
            break
    return trajectory.return_ > 0, len(trajectory.steps)


async def outcomes(tasks: Sequence[Task], way: Way, seeds: Sequence[int], n_concurrent: int = 50) -> FloatArray:
    """`[tasks, seeds]` 1 where the attempt succeeds."""
    limit = asyncio.Semaphore(n_concurrent)

    async def one(task: Task, seed: int) -> bool:
        async with limit:
            return (await play(task, way, seed))[0]

    found = await asyncio.gather(*(one(task, seed) for task in tasks for seed in seeds))
    return np.array(found, dtype=np.float64).reshape(len(tasks), len(seeds))


def ways(options: argparse.Namespace) -> list[Way]:
    """What is compared."""
    if options.adapter:
        reader = EmbeddedVerdictReader(model_folder("crafting"), options.adapter)
        critic: Any = VerdictCritic(reader)
    else:
        critic = parse_critic(options.critic)
    found = [Way("greedy", LacSettings(k=1, use_critic=False), 0.0)]
    for t in options.temperatures:
        found.append(Way(f"sampled T={t}", LacSettings(k=1, use_critic=False), t))
        for k in options.ks:
            name = f"K={k} T={t}"
            found.append(Way(f"vote {name}", LacSettings(k=k, use_critic=False), t))
            found.append(Way(f"vote+greedy {name}", LacSettings(k=k, use_critic=False, greedy=True), t))
            for alpha in options.alphas:
                settings = LacSettings(k=k, alpha=alpha, greedy=True)
                found.append(Way(f"LAC alpha={alpha} {name}", settings, t, critic))
            if options.planner:
                found.append(Way(f"planner {name}", LacSettings(k=k, greedy=True), t, Planner()))
    return found


def main() -> None:
    """Plays, prints, and keeps every outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--critic", default="verdict:embedded:crafting")
    parser.add_argument("--adapter", type=Path, help="a verdict adapter's folder, instead of --critic")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--first", type=int, default=FIRST_TASK)
    parser.add_argument("--band", type=int, nargs=2, default=[6, 14], metavar=("LEAST", "MOST"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ks", type=int, nargs="+", default=[5, 15])
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0])
    parser.add_argument("--planner", action="store_true", help="play with the perfect critic too")
    parser.add_argument("--out", type=Path, help="where outcomes are kept, as JSON")
    options = parser.parse_args()
    low, high = options.band
    tasks = list(generate_tasks(options.tasks, "train", first_seed=options.first, optimal_steps=(low, high)))
    found: dict[str, FloatArray] = {}
    for way in ways(options):
        begun = time.perf_counter()
        found[way.name] = asyncio.run(outcomes(tasks, way, options.seeds))
        print(f"{way.name}: {found[way.name].mean():.3f} in {time.perf_counter() - begun:.0f} s", flush=True)
    # The baseline is the best of all that needs no critic: compared with itself it would be chosen by luck.
    plain = [name for name in found if name.startswith(("greedy", "vote"))]
    best = max(plain, key=lambda name: found[name].mean())
    table = Table("way", "success", f"against {best}")
    for name, outcome in found.items():
        mean, error = _estimate(outcome.mean(axis=1))
        gain, gain_error = _estimate((outcome - found[best]).mean(axis=1))
        table.add_row(name, f"{mean:.3f} +- {error:.3f}", f"{gain:+.3f} +- {gain_error:.3f}")
    Console(width=110).print(table)
    if options.out:
        kept = {name: outcome.tolist() for name, outcome in found.items()}
        options.out.write_text(json.dumps({"settings": vars(options) | {"out": None}, "outcomes": kept}) + "\n")


def _estimate(values: FloatArray) -> tuple[float, float]:
    """Mean over tasks and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
