"""Show that the workshop worlds differ from crafting: dead ends, and what the end of a transcript tells about success.

    python reproduce/workshop/evidence.py [--data FOLDER]

FOLDER holds trajectories of the policy per world, as `make_value.py` collects them: FOLDER/crafting-stock, ... The
output is docs/results/worlds/evidence.json.

Dead ends: the share of 300 test tasks in which a scripted policy gets into a state without a solution. "random" draws
any listed recipe, or a fetch for it; "by the book" follows the planner of the crafting world, which knows neither stock
nor forbidden items. Signs of success: AUC against success, over trajectories of the policy that crafted the goal, of
features of the last turn and of the whole transcript.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.workshop_critic import WorkshopCritic
from amc_agents.critics.spec import parse_critic
from amc_agents.envs.crafting.tasks import next_move
from amc_agents.envs.workshop import Kind, WorkshopTask, WorkshopWorld, generate_tasks, solution_from
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.metrics import auc
from amc_agents.types import FloatArray, Trajectory
from reproduce.workshop.experiment import RAW, WORLDS

KINDS: dict[str, Kind] = dict(zip(WORLDS, ("stock", "hidden", "both"), strict=True))
OUT = RAW.parent / "evidence.json"
N_TASKS, HORIZON, FOLDS = 300, 20, 5


def random_action(task: WorkshopTask, world: WorkshopWorld, rng: np.random.Generator) -> str:
    """Draw a recipe, or a fetch for it."""
    way = task.book.recipes[int(rng.integers(len(task.book.recipes)))]
    fetches = [f"get {count} {name}" for name, count in way.inputs if name in task.book.raw]
    return str(rng.choice([*fetches, str(way)]))


def by_the_book(task: WorkshopTask, world: WorkshopWorld, rng: np.random.Generator) -> str:
    """Follow the easiest recipes without a look at stock and forbidden item."""
    move = next_move(task.book, task.goal, world.inventory)
    assert move is not None
    return move.action


async def outcome(task: Any, act: Any, seed: int) -> tuple[bool, bool]:
    """Return whether a scripted policy succeeded, and whether it got into a dead end."""
    world, rng = WorkshopWorld(), np.random.default_rng(seed)
    await world.reset(task)
    for _ in range(HORIZON):
        answer = await world.step(act(task.payload, world, rng))
        if answer.done:
            return answer.reward > 0, answer.reward == 0
        if solution_from(task.payload, world) is None:
            return False, True
    return False, False


def dead_ends(kind: Kind) -> dict[str, dict[str, float]]:
    """Return the scripted policies' shares of success and of dead ends."""
    table = {}
    for act in (random_action, by_the_book):
        tasks = generate_tasks(N_TASKS, "test", kind=kind)
        ends = np.array([asyncio.run(outcome(task, act, seed)) for seed, task in enumerate(tasks)], dtype=float)
        table[act.__name__] = {
            "success": round(float(ends[:, 0].mean()), 3),
            "dead_end": round(float(ends[:, 1].mean()), 3),
        }
    return table


def last_turn_features(played: Sequence[Trajectory]) -> FloatArray:
    """Return `[M, F]` counts of the words of the last turn."""
    texts = [
        f"{each.steps[-1].thought} {each.steps[-1].action} {each.steps[-1].observation}".split() for each in played
    ]
    words = {word: index for index, word in enumerate(sorted({word for text in texts for word in text}))}
    counts = np.zeros((len(texts), len(words)))
    for row, text in enumerate(texts):
        for word in text:
            counts[row, words[word]] += 1
    return counts


def cross_fitted(features: FloatArray, success: FloatArray, tasks: Sequence[str]) -> FloatArray:
    """Return `[M]` scores of a ridge regression that never saw the trajectory's task."""
    names = sorted(set(tasks))
    fold = np.array([names.index(task) % FOLDS for task in tasks])
    scores = np.zeros(len(tasks))
    for held_out in range(FOLDS):
        seen = fold != held_out
        mean = features[seen].mean(axis=0)
        centred, target = features[seen] - mean, success[seen] - success[seen].mean()
        weights = np.linalg.solve(centred.T @ centred + 10 * np.eye(features.shape[1]), centred.T @ target)
        scores[~seen] = (features[~seen] - mean) @ weights
    return scores


def signs(played: Sequence[Trajectory], critic: str) -> dict[str, Any]:
    """Return the AUCs of features of finished trajectories against success."""
    values = asyncio.run(parse_critic(critic).values(played))
    crafted = np.array(
        [not each.truncated and each.done and len(each.steps) <= HORIZON and _ended(each) for each in played]
    )
    success = np.array([each.return_ > 0 for each in played])
    kept = [each for each, keep in zip(played, crafted, strict=True) if keep]
    won, tasks = success[crafted], [each.task.id for each in kept]
    refused = np.array([sum(step.observation.startswith("Could not") for step in each.steps) for each in kept])
    scores = {
        "fewer steps": -np.array([len(each.steps) for each in kept], dtype=float),
        "fewer refused actions": -refused.astype(float),
        "words of the last turn": cross_fitted(last_turn_features(kept), won.astype(float), tasks),
        "value model": values[crafted],
        "planner": asyncio.run(WorkshopCritic().values(kept)),
    }
    return {
        "trajectories": len(played),
        "success": round(float(success.mean()), 3),
        "crafted the goal": round(float(crafted.mean()), 3),
        "success if crafted": round(float(won.mean()), 3),
        "auc of 'crafted the goal', all trajectories": _auc(crafted.astype(float), success),
        "auc among those that crafted the goal": {name: _auc(each, won) for name, each in scores.items()},
    }


def _ended(trajectory: Trajectory) -> bool:
    """True if the last action crafted the goal."""
    goal = WorkshopCritic().task(trajectory).goal
    return trajectory.steps[-1].observation.endswith(f"minecraft:{goal.replace(' ', '_')}")


def _auc(scores: FloatArray, success: Any) -> float | None:
    area = auc(scores, success)
    return None if area is None else round(area, 3)


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--critic", default="embedded:workshop")
    options = parser.parse_args()
    table: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for world, kind in KINDS.items():
        entry = table.setdefault(world, {})
        entry["scripted"] = dead_ends(kind)
        if options.data is not None:
            entry["signs"] = signs(read_trajectories(options.data / world), options.critic)
        print(world, json.dumps(entry, indent=1), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
