"""Trains the small BabyAI policy from scratch on the noisy bot's play, on the CPU, counted in steps.

    python reproduce/babyai/train_policy.py FOLDER [--seed 0] [--scale 1.0]

It needs the extra `train` and the package `integrations/minigrid`. Stages, optimizers and loss weights are those of
the crafting policy: Muon on matrices, AdamW on the rest; 1 on the policy's tokens, 0.1 on observations, 0 on the first
message. A stage that is done is kept in FOLDER/stages, and the one under way every 100 steps, so that an interrupted
run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from amc_agents_minigrid import ACTIONS, GO_TO_LOCAL, PICKUP_LOCAL, Expert, describe, generate_task, make_level
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM

from tokenizer import make_tokenizer

LEVELS = (GO_TO_LOCAL, PICKUP_LOCAL)


@dataclass(frozen=True)
class Stage:
    """One leg of the training."""

    name: str
    steps: int
    learning_rate: float
    error_rates: tuple[float, ...]
    """One is drawn for each dialogue, so that failures persist."""


STAGES = (
    Stage("A", 900, 4e-3, (0.0, 0.05, 0.1)),
    Stage("B", 450, 3e-3, (0.02, 0.1, 0.2, 0.3, 0.4)),
    Stage("C", 500, 3e-3, (0.0, 0.02, 0.05, 0.1, 0.2)),
)
BATCH = 12
WARM_UP = 60
KEEP_EVERY = 100


class Dialogues(IterableDataset[Any]):
    """Batches of dialogues from step `first` on: token ids, and the loss weight of each token."""

    def __init__(self, stage: Stage, seed: int, first: int) -> None:
        self.stage, self.seed, self.first = stage, seed, first

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        tokenizer = make_tokenizer()
        pool: list[tuple[list[int], list[float]]] = []
        for step in range(self.first, self.stage.steps):
            # Four batches' worth is drawn at once and cut by length, so that little is padding.
            if step % 4 == 0 or not pool:
                first = (step - step % 4) * BATCH
                pool = [self._dialogue(tokenizer, first + i) for i in range(4 * BATCH)]
                pool.sort(key=lambda row: len(row[0]))
                order = np.random.default_rng([self.seed, step // 4]).permutation(4)
            part = int(order[step % 4])
            yield padded(pool[part * BATCH : (part + 1) * BATCH])

    def _dialogue(self, tokenizer: Any, index: int) -> tuple[list[int], list[float]]:
        number = (ord(self.stage.name) - ord("A")) * 10_000_000 + self.seed * 1_000_000 + index
        rng = np.random.default_rng([number, 7])
        first, rounds = dialogue(LEVELS[index % len(LEVELS)], number, float(rng.choice(self.stage.error_rates)), rng)
        pieces = [("<|user|>" + first, 0.0)]
        for message, answer in rounds:
            pieces += [("<|assistant|>", 0.0), (message + "<|end|>", 1.0), ("<|user|>", 0.0), (answer, 0.1)]
        ids: list[int] = []
        weights: list[float] = []
        encoded = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
        for tokens, (_, weight) in zip(encoded, pieces, strict=True):
            ids += tokens
            weights += [weight] * len(tokens)
        return ids, weights


def dialogue(level_name: str, number: int, error_rate: float, rng: np.random.Generator) -> tuple[str, list[Any]]:
    """The first message and [(expert's message, world's answer), ...] of one task of the split "policy"."""
    task = generate_task(level_name, number, "policy")
    level = make_level(level_name, task.payload.seed, task.payload.horizon)
    expert = Expert(level, error_rate, rng)
    rounds: list[tuple[str, str]] = []
    over = False
    while not over:
        turn = expert.turn()
        _, _, solved, cut, _ = level.step(ACTIONS[turn.action])
        over = solved or cut
        rounds.append((f"Thought: {turn.thought}\nAction: {turn.action}", describe(level)))
    return task.instruction, rounds


def padded(rows: list[tuple[list[int], list[float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """`[B, S]` token ids and loss weights of a batch of rows."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.ones((len(rows), length), dtype=torch.long)
    weights = torch.zeros((len(rows), length))
    for row, (tokens, weight) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = torch.tensor(weight)
    return ids, weights


ROPE = {"rope_type": "default", "rope_theta": 1000.0}


def model_config(vocab_size: int) -> LlamaConfig:
    """The shape of the crafting policy: head dimension 32, which vLLM's CPU build serves too."""
    return LlamaConfig(
        vocab_size=vocab_size, hidden_size=96, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
        intermediate_size=256, max_position_embeddings=4096, rope_parameters=ROPE, tie_word_embeddings=True,
        rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=4, pad_token_id=1,
    )  # fmt: skip


def optimizers(model: LlamaForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm-up, flat for half of the stage, then a cosine down to 2%."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    share = (step - steps / 2) / (steps / 2)
    return 1.0 if share <= 0 else 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))


def train_stage(model: LlamaForCausalLM, stage: Stage, seed: int, under_way: Path) -> list[dict[str, float]]:
    """One stage, from where `under_way` left it; returns its log."""
    log: list[dict[str, float]] = []
    parts = optimizers(model, stage.learning_rate)
    first = 0
    if under_way.exists():
        kept = torch.load(under_way, weights_only=True)
        first, log = kept["step"], kept["log"]
        model.load_state_dict(kept["model"])
        for part, state in zip(parts, kept["optimizers"], strict=True):
            part.load_state_dict(state)
    loader = DataLoader(Dialogues(stage, seed, first), batch_size=None, num_workers=1, prefetch_factor=8)
    begun, tokens, running = time.perf_counter(), 0, 0.0
    for step, (ids, weights) in enumerate(loader, start=first):
        for part in parts:
            for group in part.param_groups:
                group["lr"] = stage.learning_rate * learning_rate_factor(step, stage.steps)
        logits = model(input_ids=ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten()
        loss = (losses * weight).sum() / weight.sum()
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in parts:
            part.step()
        tokens += int((ids != 1).sum())
        running += float(losses[weight == 1.0].mean().detach())
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - begun
            log.append({"step": step + 1, "loss": running / 50, "tokens": tokens, "seconds": round(seconds, 1)})
            print(stage.name, log[-1], flush=True)
            running = 0.0
        if (step + 1) % KEEP_EVERY == 0:
            state = {"step": step + 1, "log": log, "model": model.state_dict()}
            part_file = under_way.with_suffix(".part")
            torch.save({**state, "optimizers": [part.state_dict() for part in parts]}, part_file)
            part_file.replace(under_way)
    return log


def main() -> None:
    """Run the stages that are not done yet and save the model in fp16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(model_config(len(tokenizer)))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    for stage in STAGES:
        kept = arguments.folder / "stages" / stage.name
        if kept.exists():
            model = LlamaForCausalLM.from_pretrained(kept)
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        scaled = replace(stage, steps=int(stage.steps * arguments.scale))
        under_way = kept.with_suffix(".pt")
        log = train_stage(model, scaled, arguments.seed, under_way)
        model.save_pretrained(kept)
        (kept / "log.json").write_text(json.dumps(log))
        under_way.unlink(missing_ok=True)
    model.half().save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
