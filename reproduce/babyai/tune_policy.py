"""Tunes the BabyAI policy on the very data that its verdict model was trained on: what a critic must be held against.

    python reproduce/babyai/tune_policy.py DATA OUT [--epochs 3] [--learning-rate 1e-3]

DATA is that of `make_verdict.py`. The turns that the expert calls GOOD are imitated, those that were made and those
that were candidates only; the others are context. All weights are tuned.
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
from amc_agents.training.verdict.data import Judged, read_judged
from amc_agents.types import Step
from train_policy import learning_rate_factor, optimizers, padded

BATCH = 8


def dialogue(judged: Judged, tokenizer: Any, rng: np.random.Generator) -> tuple[list[int], list[float]]:
    """Token ids of a trajectory and the loss weight of each token.

    Where a step was BAD and a candidate was GOOD, the dialogue is cut there and ends with a GOOD candidate, at even
    odds with going on: what to do in a state can then be learnt wherever it is known.
    """
    pieces = [("<|user|>" + judged.trajectory.task.instruction, 0.0)]
    for t, (step, label) in enumerate(zip(judged.trajectory.steps, judged.labels, strict=True)):
        better = [one.step for one in judged.options[t] if one.label == "GOOD"] if judged.options else []
        if label != "GOOD" and better and rng.random() < 0.5:
            pieces += _turn(better[int(rng.integers(len(better)))], 1.0)
            break
        pieces += [*_turn(step, float(label == "GOOD")), ("<|user|>" + step.observation, 0.0)]
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in pieces:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += tokens
        weights += [weight] * len(tokens)
    return ids, weights


def _turn(step: Step, weight: float) -> list[tuple[str, float]]:
    return [("<|assistant|>", 0.0), (turn(step) + "<|end|>", weight)]


def tune(judged: Sequence[Judged], epochs: int, learning_rate: float, seed: int) -> tuple[Any, Any]:
    """(model, tokenizer) after some passes over the data."""
    rng = np.random.default_rng(seed)
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL).float()
    parts = optimizers(model, learning_rate)
    steps, step = epochs * -(-len(judged) // BATCH), 0
    for epoch in range(epochs):
        rows = [row for one in judged if any((row := dialogue(one, tokenizer, rng))[1])]
        order = rng.permutation(len(rows))
        losses = []
        for start in range(0, len(order), BATCH):
            ids, weights = padded([rows[i] for i in order[start : start + BATCH]])
            for group in (group for part in parts for group in part.param_groups):
                group["lr"] = learning_rate * learning_rate_factor(step, steps)
            logits = model(input_ids=ids).logits[:, :-1]
            entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            weight = weights[:, 1:].flatten()
            loss = (entropy * weight).sum() / weight.sum()
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for part in parts:
                part.step()
            losses.append(float(loss.detach()))
            step += 1
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", flush=True)
    return model, tokenizer


def main() -> None:
    """Reads, tunes, saves in fp16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    judged = [one for file in sorted(options.data.glob("*/judged.jsonl")) for one in read_judged(file)]
    if not judged:
        raise SystemExit(f"{options.data} has no */judged.jsonl: make it with make_verdict.py first")
    model, tokenizer = tune(judged, options.epochs, options.learning_rate, options.seed)
    model.half().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
