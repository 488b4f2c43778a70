"""Speed of scoring all states of a dataset: one pass per trajectory (`amc score`) against one pass per prefix.

    python benchmarks/offline_scoring.py [--runs 5] [--trajectories 6]

T = 20 steps, one thread, CPU time. Both ways batch rows of similar length without a mask, apply the head only to the
scored tokens, and use their fastest batch size. Both include rendering and tokenizing. Critics: the shipped value model
and a larger model with random weights, on torch. Runs alternate, and each ratio compares neighbouring runs. Target: at
least 5. Exits with 1 if the target is missed or the values differ.

Without a target, the numpy critic is measured, too. Its prefix cache holds all but the newest step when states are
scored in order, so the ratio shows the gain of a single pass over a perfect cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification
from transformers.utils import logging

from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.critics.value.hf import HFCritic
from amc_agents.critics.value.local import EmbeddedCritic, ScoringCritic, export_embedded_value, shipped_folder
from amc_agents.envs.crafting import generate_task
from amc_agents.types import FloatArray, Step, Trajectory

T = 20
TARGET = 5.0
BATCH_SIZES = (2, 8, 32)
Make = Callable[[int], ScoringCritic]
"""Maps a batch size to a new critic, with an empty prefix cache."""


def trajectories(count: int) -> list[Trajectory]:
    """Trajectories of T steps, in the words of a crafting policy."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        task = generate_task(number, "benchmark", optimal_steps=(8, 14))
        items = [line.split()[-1] for line in task.instruction.splitlines() if line.startswith("craft")]
        turns = [(int(rng.integers(1, 9)), items[int(rng.integers(len(items)))]) for _ in range(T)]
        steps = (Step(f"get {n} {item}", f"Got {n} {item}", f"I need {n} {item} for the goal") for n, item in turns)
        made.append(Trajectory(task, tuple(steps), done=True))
    return made


def random_model(folder: Path, shipped: Path) -> Path:
    """Write a larger value model with random weights, and the shipped model's tokenizer and prompt format."""
    config = LlamaConfig(
        vocab_size=279, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, pad_token_id=1,
    )  # fmt: skip
    config.num_labels = 1
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", FILE):
        shutil.copy(shipped / name, folder)
    checkpoint = ValueCheckpoint.load(shipped)
    # The golden scores do not hold for random weights.
    ValueCheckpoint(checkpoint.prompt_format, None, checkpoint.prefix_ids, ()).save(folder)
    return folder


def one_pass(critic: ScoringCritic, whole: Sequence[Trajectory]) -> FloatArray:
    return np.concatenate(critic.state_values(whole))


def by_prefix(critic: ScoringCritic, whole: Sequence[Trajectory]) -> FloatArray:
    return asyncio.run(critic.values([trajectory.prefix(t) for trajectory in whole for t in range(T + 1)]))


def state_by_state(critic: ScoringCritic, whole: Sequence[Trajectory]) -> FloatArray:
    """Score the states s_0 of all trajectories, then their states s_1, and so on."""

    async def scores() -> FloatArray:
        return np.array([await critic.values([trajectory.prefix(t) for trajectory in whole]) for t in range(T + 1)])

    return np.ravel(asyncio.run(scores()).T)


Way = Callable[[ScoringCritic, Sequence[Trajectory]], FloatArray]


def seconds(make: Make, way: Way, size: int, whole: Sequence[Trajectory]) -> tuple[float, FloatArray, int]:
    """CPU time, values and number of computed tokens. The comparison of golden scores is not timed."""
    critic = make(size)
    asyncio.run(critic.values([whole[0].prefix(0)]))
    before = critic.usage
    start = time.process_time()
    values = way(critic, whole)
    taken = time.process_time() - start
    used = critic.usage
    computed = (used.input_tokens - used.cached_tokens) - (before.input_tokens - before.cached_tokens)
    return taken, values, computed


def compare(make: Make, other_way: Way, sizes: Sequence[int], whole: Sequence[Trajectory], runs: int) -> dict[str, Any]:
    best = {way: min(sizes, key=lambda size: seconds(make, way, size, whole)[0]) for way in (one_pass, other_way)}
    ratios, rates, states = [], [], len(whole) * (T + 1)
    for run in range(runs):
        print(f"run {run + 1} of {runs}", file=sys.stderr, flush=True)
        fast, values, tokens = seconds(make, one_pass, best[one_pass], whole)
        slow, expected, prefix_tokens = seconds(make, other_way, best[other_way], whole)
        ratios.append(slow / fast)
        rates.append([states / fast, states / slow])
    rate, other_rate = np.median(rates, axis=0)
    return {
        "ratio": round(float(np.median(ratios)), 2),
        "ratio_least_most": [round(float(min(ratios)), 2), round(float(max(ratios)), 2)],
        "states_per_s": round(float(rate)),
        "states_per_s_other": round(float(other_rate)),
        "batch_size": best[one_pass],
        "batch_size_other": best[other_way],
        "tokens_computed": tokens,
        "tokens_computed_other": prefix_tokens,
        "largest_difference": float(np.abs(values - expected).max()),
    }


def parameters(folder: Path) -> int:
    return LlamaForSequenceClassification.from_pretrained(folder).num_parameters()


def measure(runs: int, count: int) -> dict[str, Any]:
    whole = trajectories(count)
    with tempfile.TemporaryDirectory() as name:
        shipped = export_embedded_value(shipped_folder("crafting"), Path(name) / "shipped")
        larger = random_model(Path(name) / "larger", shipped)
        results: dict[str, Any] = {}
        for label, folder in (("shipped model", shipped), ("random weights", larger)):
            results[f"torch, {label}, against one pass per prefix"] = {"parameters": parameters(folder)} | compare(
                lambda size: HFCritic(folder, batch_size=size), by_prefix, BATCH_SIZES, whole, runs  # noqa: B023
            )  # fmt: skip
        results["numpy, shipped model, against its prefix cache"] = compare(
            lambda size: EmbeddedCritic(shipped_folder("crafting")), state_by_state, [1], whole, runs
        )
    return {
        "T": T, "trajectories": count, "runs": runs, "cpus": os.cpu_count(), "threads": torch.get_num_threads(),
        "token_bound": (T + 1) / 2, "target": TARGET, "critics": results,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trajectories", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    result = measure(arguments.runs, arguments.trajectories)
    print(json.dumps(result, indent=2))
    missed = any(row["ratio"] < TARGET for name, row in result["critics"].items() if name.startswith("torch"))
    return int(missed or any(row["largest_difference"] > 1e-5 for row in result["critics"].values()))


if __name__ == "__main__":
    sys.exit(main())
