"""Measure the goal critic in the crafting world: how well it predicts which goals the embedded policy reaches.

    python reproduce/crafting/goals.py --data DATA --fresh FRESH --out OUT [--tasks 340] [--fresh-tasks 60] [--seeds 3]

DATA and FRESH get trajectories of the policy on disjoint training tasks; existing trajectories are kept. OUT gets a
critic for each setting and seed. All critics are trained on DATA and measured on FRESH, which serves no other purpose.
The results are written to `docs/results/pnlc/critic.json`, with standard errors over tasks.

The policy knows no natural language, so it cannot estimate how likely a goal is. The baselines are: the similarity of
the goal to the state or to the thought; the goals that the policy reaches in imagination, when it writes the dialogue
including the world's part; and, as an upper bound, the goals that the world's planner would reach.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from amc_agents.critics.goal.checkpoint import GoalCheckpoint
from amc_agents.critics.goal.critic import as_summary
from amc_agents.critics.goal.embeddings import HashedWords, Vectors
from amc_agents.critics.reliability import calibration_error, reliability
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.text_agent import text_agent
from amc_agents.training.collecting import collect
from amc_agents.training.goal.calibrating import SAME_GOAL, calibrate_goal
from amc_agents.training.goal.train_goal import train_goal
from amc_agents.training.goal.transitions import read_episodes, thought_of
from amc_agents.training.metrics import auc
from amc_agents.training.settings import GoalTrainingSettings
from amc_agents.types import FloatArray, Trajectory
from reproduce.crafting.goal_judges import GAMMA, RecipeGoals, imagined, planned, similarity

HORIZON = 20
FIRST_FRESH = 350_000
EMBEDDINGS = "hashed:512"
SETTINGS: dict[str, tuple[dict[str, Any], bool]] = {
    "paper": ({"nearness": False}, False),
    "defaults": ({}, False),
    "discount 0.9": ({"discount": 0.9}, False),
    "discount 0.9, horizon ends": ({"discount": 0.9}, True),
}
"""Name -> settings of the training, and whether the horizon ends an episode."""
CHOSEN = "discount 0.9, horizon ends"


@dataclass(frozen=True)
class Triple:
    """A state, a thought and a goal, and whether the goal was reached."""

    trajectory: Trajectory
    at: int
    """Number of the thought's step."""
    goal: str
    reached: bool

    @property
    def state(self) -> Trajectory:
        """The trajectory before the step."""
        return self.trajectory.prefix(self.at)


def play(folder: Path, first: int, n_tasks: int, n_trajectories: int, seed: int) -> None:
    """Collect the trajectories that a folder lacks."""
    tasks = list(generate_tasks(n_tasks, "train", first_seed=first, optimal_steps=(8, 16)))
    agent = text_agent(EmbeddedChatModel(temperature=0.8))
    collect(
        agent, tasks, CraftingWorld, n_trajectories, folder, horizon=HORIZON, policy="embedded:crafting",
        settings={"temperature": 0.8, "optimal_steps": [8, 16], "split": "train"}, seed=seed,
    )  # fmt: skip


def _triple(trajectory: Trajectory, at: int, goal: str) -> Triple | None:
    before = trajectory.steps[at - 1].observation if at else trajectory.task.instruction
    # Goals that the state has already reached are left out.
    return (
        None
        if goal == before
        else Triple(trajectory, at, goal, any(goal == step.observation for step in trajectory.steps[at:]))
    )


def independent(trajectories: Sequence[Trajectory], rng: np.random.Generator, per_trajectory: int) -> list[Triple]:
    """Draw goals that other trajectories of the same task reached."""
    triples = []
    for trajectory in trajectories:
        others = [other for other in trajectories if other.task.id == trajectory.task.id and other is not trajectory]
        for at in rng.choice(len(trajectory.steps), size=min(per_trajectory, len(trajectory.steps)), replace=False):
            other = others[rng.integers(len(others))]
            triples.append(_triple(trajectory, int(at), other.steps[rng.integers(len(other.steps))].observation))
    return [triple for triple in triples if triple]


async def proposed(trajectories: Sequence[Trajectory], rng: np.random.Generator, per_trajectory: int) -> list[Triple]:
    """Take goals that the recipe book proposes, as in decisions."""
    triples = []
    for trajectory in trajectories:
        for at in rng.choice(len(trajectory.steps), size=min(per_trajectory, len(trajectory.steps)), replace=False):
            goals = await RecipeGoals().propose(trajectory.prefix(int(at)), "", 2, 2)
            triples += [_triple(trajectory, int(at), goal) for goal in (*goals.positive, *goals.negative)]
    return [triple for triple in triples if triple]


async def embedded(triples: Sequence[Triple]) -> tuple[Vectors, Vectors, Vectors]:
    """Embed states, thoughts and goals: `[n, D]` each."""
    model = HashedWords(int(EMBEDDINGS.partition(":")[2]))
    states = (await as_summary("none").describe([triple.state for triple in triples])).states
    thoughts = [thought_of(triple.trajectory.steps[triple.at]) for triple in triples]
    goals = [triple.goal for triple in triples]
    of_states, of_thoughts, of_goals = [(await model.embed(texts)).vectors for texts in (states, thoughts, goals)]
    return of_states, of_thoughts, of_goals


def auc_over_tasks(score: FloatArray, triples: Sequence[Triple]) -> dict[str, float]:
    """Return the AUC, and its standard error from 200 bootstrap samples of the tasks."""
    label = np.array([triple.reached for triple in triples], dtype=np.float64)
    task = np.unique([triple.trajectory.task.id for triple in triples], return_inverse=True)[1]
    rows = [np.flatnonzero(task == number) for number in range(task.max() + 1)]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(200):
        chosen = np.concatenate([rows[number] for number in rng.integers(len(rows), size=len(rows))])
        drawn.append(auc(score[chosen], label[chosen]))
    value = auc(score, label)
    assert value is not None
    return {"auc": value, "standard_error": float(np.std([sample for sample in drawn if sample is not None], ddof=1))}


def over_seeds(score: Sequence[FloatArray], triples: Sequence[Triple]) -> dict[str, Any]:
    """Return the mean AUC over training seeds, its standard error over tasks, and the deviation over seeds."""
    each = [auc_over_tasks(scores, triples) for scores in score]
    values = [estimate["auc"] for estimate in each]
    return {
        "auc": float(np.mean(values)),
        "standard_error_tasks": float(np.mean([estimate["standard_error"] for estimate in each])),
        "deviation_seeds": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "seeds": len(values),
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the AUC of every setting and baseline on fresh tasks, and the chosen critic's reliability."""
    rng = np.random.default_rng(0)
    fresh = [episode.trajectory for episode in read_episodes(options.fresh) if episode.trajectory.steps]
    kinds = {"independent": independent(fresh, rng, 4), "proposed": await proposed(fresh, rng, 2)}
    results: dict[str, Any] = {"trajectories": len(fresh), "tasks": len({trajectory.task.id for trajectory in fresh})}
    for kind, triples in kinds.items():
        vectors = await embedded(triples)
        reached = np.array([triple.reached for triple in triples])
        table: dict[str, Any] = {}
        for name in options.settings:
            critics = [GoalCheckpoint.load(folder) for folder in _trained(options, name)]
            table[name] = over_seeds([critic.network.q(*vectors) for critic in critics], triples)
        table["similarity of state and goal"] = auc_over_tasks(similarity(vectors[0], vectors[2]), triples)
        table["similarity of thought and goal"] = auc_over_tasks(similarity(vectors[1], vectors[2]), triples)
        table["planner (knows the world)"] = auc_over_tasks(await planned(triples), triples)
        results[kind] = {"triples": len(triples), "reached": float(reached.mean()), "auc": table}
        results[kind]["labels by similarity that agree"] = await agreement(triples)
        results[kind]["reliability"] = _reliability(options, vectors, triples)
        subset = [triples[row] for row in np.sort(rng.permutation(len(triples))[: options.imagined])]
        start = time.perf_counter()
        imagined_values = await imagined(subset)
        critic_values = GoalCheckpoint.load(_folder(options.out, CHOSEN, 0)).network.q(*await embedded(subset))
        results[kind]["beside what the policy imagines"] = {
            "triples": len(subset),
            "imagined": auc_over_tasks(imagined_values, subset),
            "critic": auc_over_tasks(critic_values, subset),
            "seconds": time.perf_counter() - start,
        }
    return results


async def agreement(triples: Sequence[Triple]) -> float:
    """Return how often the similarity threshold, the default label of goals, agrees with equality."""
    model = HashedWords(int(EMBEDDINGS.partition(":")[2]))
    later = [[step.observation for step in triple.trajectory.steps[triple.at :]] for triple in triples]
    goals = (await model.embed([triple.goal for triple in triples])).vectors
    near = [np.max((await model.embed(texts)).vectors @ goal) for texts, goal in zip(later, goals, strict=True)]
    return float(np.mean((np.array(near) >= SAME_GOAL) == [triple.reached for triple in triples]))


def _reliability(
    options: argparse.Namespace, vectors: tuple[Vectors, Vectors, Vectors], triples: Sequence[Triple]
) -> dict[str, Any]:
    """Measure the reliability of the chosen critic's Q and of its probabilities, calibrated on either kind of goals."""
    reached, tasks = (
        np.array([triple.reached for triple in triples]),
        np.array([triple.trajectory.task.id for triple in triples]),
    )
    checkpoint = GoalCheckpoint.load(_folder(options.out, CHOSEN, 0))
    by_proposer = GoalCheckpoint.load(options.out / "proposed")
    assert checkpoint.calibration is not None
    assert by_proposer.calibration is not None
    q = checkpoint.network.q(*vectors)
    kinds = {
        "Q itself": np.clip(q, 0, 1),
        "calibrated on independent goals": checkpoint.calibration(q),
        "calibrated on proposed goals": by_proposer.calibration(q),
    }
    bins_of = {name: reliability(p, reached, tasks) for name, p in kinds.items()}
    return {
        name: {"error": calibration_error(bins), "bins": [bin._asdict() for bin in bins]}
        for name, bins in bins_of.items()
    }


def _trained(options: argparse.Namespace, name: str) -> list[Path]:
    """Return the trained critics of a setting."""
    folders = [_folder(options.out, name, seed) for seed in range(options.seeds)]
    return [folder for folder in folders if (folder / "amc_goal.json").exists()]


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name.replace(' ', '-').replace(',', '')}-{seed}"


def main() -> None:
    """Play, train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="trajectories to train on; missing ones are collected")
    parser.add_argument(
        "--fresh", type=Path, required=True, help="trajectories to measure on; missing ones are collected"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the critics")
    parser.add_argument("--tasks", type=int, default=340)
    parser.add_argument("--fresh-tasks", type=int, default=60)
    parser.add_argument("--trajectories", type=int, default=6, help="number per task")
    parser.add_argument("--seeds", type=int, default=3, help="number of training seeds")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--imagined", type=int, default=150, help="number of triples for the policy's imagination")
    parser.add_argument("--results", type=Path, default=Path("docs/results/pnlc/critic.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    play(options.data, 0, options.tasks, options.trajectories, seed=0)
    play(options.fresh, FIRST_FRESH, options.fresh_tasks, options.trajectories, seed=1)
    for name in options.settings:
        changes, horizon_ends = SETTINGS[name]
        episodes = read_episodes(options.data, horizon_ends=horizon_ends)
        for seed in range(options.seeds):
            if not (_folder(options.out, name, seed) / "amc_goal.json").exists():
                settings = replace(GoalTrainingSettings(), **changes, seed=seed)
                train_goal(episodes, _folder(options.out, name, seed), EMBEDDINGS, settings)
                print(f"trained: {name}, seed {seed}", flush=True)
    GoalCheckpoint.load(_folder(options.out, CHOSEN, 0)).save(options.out / "proposed")
    episodes = read_episodes(options.data, horizon_ends=SETTINGS[CHOSEN][1])
    calibrate_goal(options.out / "proposed", episodes, proposer=RecipeGoals(), reached=lambda goal, at: goal == at)
    results = {
        "command": " ".join(["python", *sys.argv]),
        "embeddings": EMBEDDINGS,
        "same goal": SAME_GOAL,
        "gamma": GAMMA,
    }
    results |= asyncio.run(measure(options))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
