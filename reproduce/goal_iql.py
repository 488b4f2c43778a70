"""Compare our goal-conditioned IQL with d3rlpy's, on the same transitions and goals.

    pip install d3rlpy==2.8.1        (in a separate environment: it pins gymnasium 1.0.0)
    python reproduce/goal_iql.py [--seeds 3] [--steps 4000] [--critics 1 2]

The world is random and stochastic: 14 states with 3 thoughts each, terminal states, at most six steps; states, thoughts
and goals are random unit vectors. Both train on the same list of (state, thought, next state, goal), drawn with the
default shares. For d3rlpy, the observation is state and goal, and the action is the thought. The Q of every (state,
thought, goal) in the data are compared by Spearman's rank correlation. The correlation of each library with itself,
over seeds, is the attainable maximum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch

from amc_agents.critics.goal.critic import FunctionSummary
from amc_agents.critics.goal.embeddings import Vectors
from amc_agents.training.goal.train_goal import fit
from amc_agents.training.goal.transitions import Episode, GoalBatch, GoalData, goal_data
from amc_agents.training.settings import GoalShares, GoalTrainingSettings
from amc_agents.types import FloatArray, Step, Task, Trajectory

SETTINGS = GoalTrainingSettings(
    discount=0.8, batch_size=256, learning_rate=1e-3, target_rate=0.02, weight_decay=0.0, nearness=False
)
N_STATES, N_THOUGHTS, DIMENSIONS = 14, 3, 24


def played(n: int, rng: np.random.Generator) -> list[Episode]:
    """Play random thoughts in a random world; the last three states are terminal."""
    after = rng.dirichlet(np.full(N_STATES, 0.15), size=(N_STATES - 3, N_THOUGHTS))
    episodes = []
    for _ in range(n):
        state = first = int(rng.integers(N_STATES - 3))
        steps: list[Step] = []
        while state < N_STATES - 3 and len(steps) < 6:
            thought = int(rng.integers(N_THOUGHTS))
            state = int(rng.choice(N_STATES, p=after[state, thought]))
            steps.append(Step("-", f"state {state}", f"thought {thought}"))
        episodes.append(Episode(Trajectory(Task("t", f"state {first}"), tuple(steps), done=True), state < N_STATES - 3))
    return episodes


@dataclass(frozen=True)
class FixedData:
    """A fixed list of rows for both libraries, instead of new goals."""

    rows: GoalBatch

    def sample(self, rng: np.random.Generator, n: int, shares: GoalShares, discount: float) -> GoalBatch:
        """Draw rows of the list uniformly."""
        chosen = rng.integers(len(self.rows.state), size=n)
        return GoalBatch._make(column[chosen] for column in self.rows)


def ours(rows: GoalBatch, vectors: Vectors, triples: Any, steps: int, critics: int, seed: int) -> FloatArray:
    """`[n]` Q of `amc_agents.training.goal.train_goal.fit`."""
    settings = replace(SETTINGS, twin=critics == 2, iterations=steps // 50, seed=seed)
    data: Any = FixedData(rows)
    network, _ = fit(data, vectors, settings, np.random.default_rng(seed))
    return network.q(*(vectors[column] for column in triples))


def theirs(rows: GoalBatch, vectors: Vectors, triples: Any, steps: int, critics: int, seed: int) -> FloatArray:
    """`[n]` Q of d3rlpy's IQL."""
    d3rlpy.seed(seed)
    encoder = d3rlpy.models.VectorEncoderFactory([SETTINGS.hidden, SETTINGS.hidden])
    rate = {"actor_learning_rate": SETTINGS.learning_rate, "critic_learning_rate": SETTINGS.learning_rate}
    algorithm = d3rlpy.algos.IQLConfig(
        gamma=SETTINGS.discount, expectile=SETTINGS.expectile, tau=SETTINGS.target_rate, n_critics=critics,
        batch_size=SETTINGS.batch_size, critic_encoder_factory=encoder, value_encoder_factory=encoder,
        actor_encoder_factory=encoder, **rate,
    ).create(device="cpu:0")  # fmt: skip
    scale = float(np.sqrt(DIMENSIONS))

    def seen(state: Any, goal: Any) -> Vectors:
        return (scale * np.concatenate([vectors[state], vectors[goal]], axis=-1)).astype(np.float32)

    # A non-terminal transition is a truncated episode of two observations; a terminal transition has one observation.
    episodes = []
    for state, thought, after, goal, reached, ended, already, kept in zip(*rows, strict=True):
        if not kept or already:
            continue
        terminal = bool(reached or ended)
        observations = seen(state, goal)[None] if terminal else np.stack([seen(state, goal), seen(after, goal)])
        actions = np.repeat(scale * vectors[thought][None], len(observations), axis=0)
        rewards = np.zeros((len(observations), 1), dtype=np.float32)
        rewards[0] = float(reached)
        episodes.append(d3rlpy.dataset.Episode(observations, actions, rewards, terminated=terminal))
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(episodes)
    algorithm.fit(
        buffer, n_steps=steps, n_steps_per_epoch=steps, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    state, thought, goal = triples
    return np.asarray(algorithm.predict_value(seen(state, goal), scale * vectors[thought]), dtype=np.float64)


def spearman(left: FloatArray, right: FloatArray) -> float:
    """Return the rank correlation, assuming no ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (left, right)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def main() -> None:
    """Train both, and write their agreement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--critics", type=int, nargs="+", choices=[1, 2], default=[1, 2])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--results", type=Path, default=Path("docs/results/pnlc/iql.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    summary = FunctionSummary(lambda state: state.steps[-1].observation if state.steps else state.task.instruction)
    data: GoalData = asyncio.run(goal_data(played(1000, rng), summary))
    drawn = rng.normal(size=(len(data.texts), DIMENSIONS)).astype(np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    rows = data.sample(rng, options.rows, SETTINGS.shares, SETTINGS.discount)
    trained = rows.kept & ~rows.already
    triples = np.unique(np.stack([rows.state, rows.thought, rows.goal])[:, trained], axis=1)
    results: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "d3rlpy": d3rlpy.__version__}
    results |= {"transitions": int(trained.sum()), "triples": triples.shape[1], "steps": options.steps, "critics": {}}
    for critics in options.critics:
        arguments = rows, vectors, triples, options.steps, critics
        mine = [ours(*arguments, seed) for seed in range(options.seeds)]
        library = [theirs(*arguments, seed) for seed in range(options.seeds)]
        cross = [spearman(left, right) for left in mine for right in library]
        results["critics"][critics] = {
            "spearman": {"mean": float(np.mean(cross)), "least": min(cross)},
            "ours over seeds": [spearman(*pair) for pair in combinations(mine, 2)],
            "d3rlpy over seeds": [spearman(*pair) for pair in combinations(library, 2)],
            "largest difference of mean Q": float(np.abs(np.mean(mine, axis=0) - np.mean(library, axis=0)).max()),
            "mean difference of mean Q": float(np.abs(np.mean(mine, axis=0) - np.mean(library, axis=0)).mean()),
        }
        print(critics, json.dumps(results["critics"][critics], indent=1), flush=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
