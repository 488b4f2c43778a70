"""Measure how well value models rank the particles of a single task, which is what resampling needs.

    python reproduce/crafting/value_ranking.py ADAPTER [ADAPTER ...] --data DATA [--tasks 150] [--temperature 0.5]

Plays training tasks that no model was trained on, 15 times each. For each adapter (a folder, "value" for the policy's
own, or "planner" for the oracle that counts wasted steps), it prints the AUC of the values against final success after
several numbers of steps: within tasks (each task with both outcomes counts once), with the paired difference to the
first adapter, and pooled over tasks. A model that recognises hard tasks has a high pooled AUC, but may be useless for
resampling.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.planner_critic import PlannerCritic
from amc_agents.bench.statistics import Measured, estimate, paired
from amc_agents.critics.spec import parse_critic
from amc_agents.envs.crafting.tasks import generate_tasks
from amc_agents.envs.crafting.world import CraftingWorld
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.training.collecting import collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.metrics import auc
from amc_agents.types import Critic, Trajectory

FIRST_TASK, HORIZON, SIBLINGS = 800_000, 20, 15
PLANNER = "planner"
STEPS = (4, 6, 8, 10, 12, 14)


def areas(played: Sequence[Trajectory], values: np.ndarray) -> dict[tuple[str, int], float]:
    """Return the AUC within each task that has both outcomes, by (task, 0)."""
    of_task: dict[str, list[int]] = defaultdict(list)
    for index, trajectory in enumerate(played):
        of_task[trajectory.task.id].append(index)
    success = np.array([trajectory.return_ > 0 for trajectory in played])
    each = {(task, 0): auc(values[rows], success[rows]) for task, rows in of_task.items()}
    return {key: area for key, area in each.items() if area is not None}


def shown(within: Measured, first: Measured) -> str:
    """Format the mean AUC within tasks, and its paired difference to that of the first adapter."""
    if len(within) < 2:
        return "within undefined"
    mean = estimate(within)
    text = f"within {mean.mean:.3f} ± {mean.standard_error or 0:.3f} ({mean.tasks} tasks)"
    if within is first:
        return text
    gain = paired(within, first)
    return f"{text}, minus the first {gain.difference:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def main() -> None:
    """Play the missing tasks, and compare the critics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="crafting")
    parser.add_argument("--base", help="base model of the adapters; default: the policy")
    parser.add_argument("--tasks", type=int, default=150)
    parser.add_argument("--band", type=int, nargs=2, default=[12, 16])
    parser.add_argument("--temperature", type=float, default=0.5)
    options = parser.parse_args()
    low, high = options.band
    tasks = list(generate_tasks(options.tasks, "train", first_seed=FIRST_TASK, optimal_steps=(low, high)))
    collect(
        plain_text_agent(EmbeddedChatModel(model=options.model, temperature=options.temperature)), tasks, CraftingWorld,
        SIBLINGS, options.data, horizon=HORIZON, policy=options.model, seed=0,
        settings={"temperature": options.temperature, "optimal_steps": options.band, "first": FIRST_TASK},
    )  # fmt: skip
    played = read_trajectories(options.data)
    print(f"{len(played)} trajectories, mean return {np.mean([trajectory.return_ for trajectory in played]):.3f}")
    first: dict[int, dict[tuple[str, int], float]] = {}
    for adapter in options.adapters:
        spec = f"embedded:{options.base or options.model}?adapter={adapter}"
        critic: Critic = PlannerCritic() if adapter == PLANNER else parse_critic(spec)
        for step in STEPS:
            unfinished = [trajectory for trajectory in played if len(trajectory.steps) > step]
            values = asyncio.run(critic.values([trajectory.prefix(step) for trajectory in unfinished]))
            within = areas(unfinished, values)
            first.setdefault(step, within)
            pooled = auc(values, np.array([trajectory.return_ > 0 for trajectory in unfinished]))
            print(f"{adapter} step {step:2}: {shown(within, first[step])}, pooled {pooled:.3f}", flush=True)


if __name__ == "__main__":
    main()
