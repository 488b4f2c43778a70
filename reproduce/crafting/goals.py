"""The goal critic in the crafting world: how well it foresees what the embedded policy will reach.

    python reproduce/crafting/goals.py --data DATA --fresh FRESH --out OUT [--tasks 340] [--fresh-tasks 60] [--seeds 3]

DATA and FRESH get trajectories of the policy (what is there is not played again) on training tasks that share nothing;
OUT gets a critic for each setting and seed. All trained on DATA, all measured on FRESH, which nothing was chosen on.
`docs/results/pnlc/critic.json` gets the figures, with standard errors over tasks.

The policy knows no language, so it cannot say how likely a goal is. In place of its own estimate stand: how similar the
goal is to the state, or to the thought; what it imagines itself to reach when it goes on writing the dialogue, the
world's part too; and, as an upper mark, what the world's planner would reach from there.
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
from amc_agents.critics.goal.embeddings import HashedWords, Vectors
from amc_agents.critics.goal.summaries import as_summary
from amc_agents.critics.reliability import calibration_error, reliability
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.text_agent import text_agent
from amc_agents.training.collecting import collect
from amc_agents.training.goal.calibrating import SAME_GOAL, calibrate_goal
from amc_agents.training.goal.data import read_episodes, thought_of
from amc_agents.training.goal.training import GoalTrainingSettings, train_goal
from amc_agents.training.value.metrics import auc
from amc_agents.types import FloatArray, Trajectory
from goal_judges import GAMMA, RecipeGoals, imagined, planned, similarity

HORIZON = 20
FIRST_FRESH = 350_000
EMBEDDINGS = "hashed:512"
SETTINGS: dict[str, tuple[dict[str, Any], bool]] = {
    "paper": ({"nearness": False}, False),
    "defaults": ({}, False),
    "discount 0.9": ({"discount": 0.9}, False),
    "discount 0.9, horizon ends": ({"discount": 0.9}, True),
}
"""Name -> settings of the training, and whether the horizon is an end."""
CHOSEN = "discount 0.9, horizon ends"


@dataclass(frozen=True)
class Triple:
    """A state, a thought and a goal, and what became of it."""

    trajectory: Trajectory
    at: int
    """The thought is that of this step."""
    goal: str
    reached: bool

    @property
    def state(self) -> Trajectory:
        """What the agent had seen."""
        return self.trajectory.prefix(self.at)


def play(folder: Path, first: int, n_tasks: int, n_trajectories: int, seed: int) -> None:
    """Collects what a folder still lacks."""
    tasks = list(generate_tasks(n_tasks, "train", first_seed=first, optimal_steps=(8, 16)))
    agent = text_agent(EmbeddedChatModel(temperature=0.8))
    collect(
        agent, tasks, CraftingWorld, n_trajectories, folder, horizon=HORIZON, policy="embedded:crafting",
        settings={"temperature": 0.8, "optimal_steps": [8, 16], "split": "train"}, seed=seed,
    )  # fmt: skip


def _triple(one: Trajectory, at: int, goal: str) -> Triple | None:
    before = one.steps[at - 1].observation if at else one.task.instruction
    # A goal that the state has reached already is no question.
    return None if goal == before else Triple(one, at, goal, any(goal == step.observation for step in one.steps[at:]))


def independent(trajectories: Sequence[Trajectory], rng: np.random.Generator, per_trajectory: int) -> list[Triple]:
    """Goals that other trajectories of the same task came to."""
    found = []
    for one in trajectories:
        others = [other for other in trajectories if other.task.id == one.task.id and other is not one]
        for at in rng.choice(len(one.steps), size=min(per_trajectory, len(one.steps)), replace=False):
            other = others[rng.integers(len(others))]
            found.append(_triple(one, int(at), other.steps[rng.integers(len(other.steps))].observation))
    return [triple for triple in found if triple]


async def proposed(trajectories: Sequence[Trajectory], rng: np.random.Generator, per_trajectory: int) -> list[Triple]:
    """Goals that the recipe book suggests, as when decisions are made."""
    found = []
    for one in trajectories:
        for at in rng.choice(len(one.steps), size=min(per_trajectory, len(one.steps)), replace=False):
            goals = await RecipeGoals().propose(one.prefix(int(at)), "", 2, 2)
            found += [_triple(one, int(at), goal) for goal in (*goals.positive, *goals.negative)]
    return [triple for triple in found if triple]


async def embedded(triples: Sequence[Triple]) -> tuple[Vectors, Vectors, Vectors]:
    """Each `[n, D]`: embeddings of states, thoughts and goals."""
    model = HashedWords(int(EMBEDDINGS.partition(":")[2]))
    states = (await as_summary("none").describe([one.state for one in triples])).states
    thoughts = [thought_of(one.trajectory.steps[one.at]) for one in triples]
    goals = [one.goal for one in triples]
    of_states, of_thoughts, of_goals = [(await model.embed(texts)).vectors for texts in (states, thoughts, goals)]
    return of_states, of_thoughts, of_goals


def auc_over_tasks(score: FloatArray, triples: Sequence[Triple]) -> dict[str, float]:
    """AUC, and its standard error by 200 bootstrap samples of the tasks."""
    label = np.array([one.reached for one in triples], dtype=np.float64)
    task = np.unique([one.trajectory.task.id for one in triples], return_inverse=True)[1]
    rows = [np.flatnonzero(task == one) for one in range(task.max() + 1)]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(200):
        chosen = np.concatenate([rows[one] for one in rng.integers(len(rows), size=len(rows))])
        drawn.append(auc(score[chosen], label[chosen]))
    value = auc(score, label)
    assert value is not None
    return {"auc": value, "standard_error": float(np.std([one for one in drawn if one is not None], ddof=1))}


def over_seeds(score: Sequence[FloatArray], triples: Sequence[Triple]) -> dict[str, Any]:
    """Mean AUC over seeds of training, its standard error over tasks, and how far seeds lie apart."""
    each = [auc_over_tasks(one, triples) for one in score]
    values = [one["auc"] for one in each]
    return {
        "auc": float(np.mean(values)),
        "standard_error_tasks": float(np.mean([one["standard_error"] for one in each])),
        "deviation_seeds": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "seeds": len(values),
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """AUC of every setting and judge on fresh tasks, and the reliability of the chosen critic's probabilities."""
    rng = np.random.default_rng(0)
    fresh = [one.trajectory for one in read_episodes(options.fresh) if one.trajectory.steps]
    kinds = {"independent": independent(fresh, rng, 4), "proposed": await proposed(fresh, rng, 2)}
    told: dict[str, Any] = {"trajectories": len(fresh), "tasks": len({one.task.id for one in fresh})}
    for kind, triples in kinds.items():
        vectors = await embedded(triples)
        reached = np.array([one.reached for one in triples])
        table: dict[str, Any] = {}
        for name in options.settings:
            critics = [GoalCheckpoint.load(one) for one in _trained(options, name)]
            table[name] = over_seeds([one.network.q(*vectors) for one in critics], triples)
        table["similarity of state and goal"] = auc_over_tasks(similarity(vectors[0], vectors[2]), triples)
        table["similarity of thought and goal"] = auc_over_tasks(similarity(vectors[1], vectors[2]), triples)
        table["planner (knows the world)"] = auc_over_tasks(await planned(triples), triples)
        told[kind] = {"triples": len(triples), "reached": float(reached.mean()), "auc": table}
        told[kind]["labels by similarity that agree"] = await agreement(triples)
        told[kind]["reliability"] = _reliability(options, vectors, triples)
        asked = [triples[row] for row in np.sort(rng.permutation(len(triples))[: options.imagined])]
        begun = time.perf_counter()
        own = await imagined(asked)
        critic = GoalCheckpoint.load(_folder(options.out, CHOSEN, 0)).network.q(*await embedded(asked))
        told[kind]["beside what the policy imagines"] = {
            "triples": len(asked),
            "imagined": auc_over_tasks(own, asked),
            "critic": auc_over_tasks(critic, asked),
            "seconds": time.perf_counter() - begun,
        }
    return told


async def agreement(triples: Sequence[Triple]) -> float:
    """How often the threshold of similarity, which labels goals where no rule can, says the same as equality."""
    model = HashedWords(int(EMBEDDINGS.partition(":")[2]))
    later = [[step.observation for step in one.trajectory.steps[one.at :]] for one in triples]
    goals = (await model.embed([one.goal for one in triples])).vectors
    near = [np.max((await model.embed(texts)).vectors @ goal) for texts, goal in zip(later, goals, strict=True)]
    return float(np.mean((np.array(near) >= SAME_GOAL) == [one.reached for one in triples]))


def _reliability(
    options: argparse.Namespace, vectors: tuple[Vectors, Vectors, Vectors], triples: Sequence[Triple]
) -> dict[str, Any]:
    """On fresh tasks, of the chosen critic's Q, and of its probability by either kind of goals."""
    reached, tasks = np.array([one.reached for one in triples]), np.array([one.trajectory.task.id for one in triples])
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
    found = {name: reliability(p, reached, tasks) for name, p in kinds.items()}
    return {
        name: {"error": calibration_error(bins), "bins": [one._asdict() for one in bins]}
        for name, bins in found.items()
    }


def _trained(options: argparse.Namespace, name: str) -> list[Path]:
    """Critics of a setting; an interrupted training has fewer."""
    folders = [_folder(options.out, name, seed) for seed in range(options.seeds)]
    return [one for one in folders if (one / "amc_goal.json").exists()]


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name.replace(' ', '-').replace(',', '')}-{seed}"


def main() -> None:
    """Plays, trains, measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="trajectories to train on; collected where missing")
    parser.add_argument("--fresh", type=Path, required=True, help="trajectories to measure on; collected where missing")
    parser.add_argument("--out", type=Path, required=True, help="folder for the critics")
    parser.add_argument("--tasks", type=int, default=340)
    parser.add_argument("--fresh-tasks", type=int, default=60)
    parser.add_argument("--trajectories", type=int, default=6, help="of each task")
    parser.add_argument("--seeds", type=int, default=3, help="of training")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--imagined", type=int, default=150, help="triples that the policy's imagination is asked of")
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
    told = {
        "command": " ".join(["python", *sys.argv]),
        "embeddings": EMBEDDINGS,
        "same goal": SAME_GOAL,
        "gamma": GAMMA,
    }
    told |= asyncio.run(measure(options))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
