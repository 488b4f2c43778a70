"""Fine-tune the BabyAI policy on the data of its verdict model: the baseline for that critic.

    python reproduce/babyai/tune_policy.py DATA OUT [--epochs 3] [--learning-rate 1e-3]

DATA is the data of `make_verdict.py`. Turns that the expert labels GOOD are imitated, both steps and candidates; other
turns are context. All weights are trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from amc_agents_minigrid import MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer

from amc_agents.critics.render import turn
from amc_agents.training.verdict.labelling import Judged, read_judged
from amc_agents.types import Step
from reproduce.policy_training import optimizers, padded, set_learning_rate, token_losses, update, weighted_row

BATCH = 8


def dialogue(judged: Judged, tokenizer: Any, rng: np.random.Generator) -> tuple[list[int], list[float]]:
    """Return the token ids of a trajectory and the loss weight of each token.

    Where a step is BAD and a candidate is GOOD, the dialogue is cut with probability one half and ends with a GOOD
    candidate, so that the correct action of such a state can be learnt.
    """
    pieces = [("<|user|>" + judged.trajectory.task.instruction, 0.0)]
    for t, (step, label) in enumerate(zip(judged.trajectory.steps, judged.labels, strict=True)):
        better = [option.step for option in judged.options[t] if option.label == "GOOD"] if judged.options else []
        if label != "GOOD" and better and rng.random() < 0.5:
            pieces += _turn(better[int(rng.integers(len(better)))], 1.0)
            break
        pieces += [*_turn(step, float(label == "GOOD")), ("<|user|>" + step.observation, 0.0)]
    return weighted_row(tokenizer, pieces)


def _turn(step: Step, weight: float) -> list[tuple[str, float]]:
    return [("<|assistant|>", 0.0), (turn(step) + "<|end|>", weight)]


def tune(judged: Sequence[Judged], epochs: int, learning_rate: float, seed: int) -> tuple[Any, Any]:
    """Train for some epochs and return (model, tokenizer)."""
    rng = np.random.default_rng(seed)
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL).float()
    parts = optimizers(model, learning_rate)
    steps, step = epochs * -(-len(judged) // BATCH), 0
    for epoch in range(epochs):
        rows = [row for play in judged if any((row := dialogue(play, tokenizer, rng))[1])]
        order = rng.permutation(len(rows))
        losses = []
        for start in range(0, len(order), BATCH):
            ids, weights = padded([rows[i] for i in order[start : start + BATCH]])
            set_learning_rate(parts, learning_rate, step, steps)
            entropy, weight = token_losses(model, ids, weights)
            loss = (entropy * weight).sum() / weight.sum()
            update(parts, loss, list(model.parameters()))
            losses.append(float(loss.detach()))
            step += 1
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", flush=True)
    return model, tokenizer


def main() -> None:
    """Read the data, train, and save in float16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    judged = [play for file in sorted(options.data.glob("*/judged.jsonl")) for play in read_judged(file)]
    if not judged:
        raise SystemExit(f"{options.data} has no */judged.jsonl: run make_verdict.py first")
    model, tokenizer = tune(judged, options.epochs, options.learning_rate, options.seed)
    model.half().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
