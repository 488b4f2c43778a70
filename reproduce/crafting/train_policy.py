"""Trains the embedded crafting policy from scratch, on the CPU, counted in steps.

    python reproduce/crafting/train_policy.py FOLDER [--seed 0] [--scale 1.0] [--again 0]

Five stages, each with a warm-up, a flat part and a cosine end; Muon on matrices, AdamW on the rest.
Loss weights: 1 on the policy's tokens, 0.1 on observations, 0 on the prompt. A stage that is done is kept
in FOLDER/stages, so that a run that was interrupted goes on with the next stage. Seeds differ much in how soon they
learn to follow recipes down: `--again` makes the last stage so many times more, each with dialogues of its own.
At the end it says the loss on the policy's tokens of dialogues that no seed is trained on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM

from amc_agents.envs.crafting.generate import generate_task
from amc_agents.types import Task
from expert import play
from tokenizer import make_tokenizer

Row = TypeVar("Row", bound=tuple[Any, ...])

SPLIT = "policy"
"""Seed stream of the books that the policy is trained on; "train" and "test" stay unseen."""


@dataclass(frozen=True)
class Stage:
    """One leg of the training."""

    name: str
    steps: int
    learning_rate: float
    optimal_steps: tuple[int, int]
    error_rates: tuple[float, ...]
    easy_share: float = 0.0
    """Share of the steps at the beginning made on clean short tasks (2 to 7 optimal steps)."""
    whole_way: bool = False
    """Thoughts lead down to the sub-goal recipe by recipe; else they state the sub-goal's recipe alone."""


STAGES = (
    Stage("C", 3600, 4e-3, (2, 14), (0.02, 0.02, 0.15, 0.15, 0.35, 0.5), easy_share=0.4),
    Stage("D", 2400, 3e-3, (3, 12), (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)),
    Stage("E", 1800, 3e-3, (3, 14), (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)),
    Stage("F", 5000, 3e-3, (3, 14), (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)),
    Stage("G", 4000, 3e-3, (3, 14), (0.0, 0.02, 0.05, 0.1, 0.2, 0.3), whole_way=True),
)
HELD_OUT = replace(STAGES[-1], name="held-out", steps=16)
"""Judges: its dialogues are those of a seed that nothing is trained with."""
HELD_OUT_SEED = 99
BATCH = 12
WARM_UP = 60


class Dialogues(IterableDataset[Any]):
    """Batches of dialogues: token ids, and the loss weight of each token."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.seed = stage, seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        tokenizer = make_tokenizer()
        rows = batches(lambda index: self._dialogue(tokenizer, index), self.stage.steps, BATCH, self.seed)
        return map(_padded, rows)

    def task(self, number: int, span: tuple[int, int]) -> Task:
        """The task of a dialogue, with so many optimal steps."""
        return generate_task(number, SPLIT, optimal_steps=span)

    def _dialogue(self, tokenizer: Any, index: int) -> tuple[list[int], list[float]]:
        stage = self.stage
        number = (ord(stage.name[0]) << 32) + (self.seed << 24) + index
        rng = np.random.default_rng(number)
        easy = index < stage.easy_share * stage.steps * BATCH
        span, rate = ((2, 7), 0.0) if easy else (stage.optimal_steps, float(rng.choice(stage.error_rates)))
        task = self.task(number, span)
        rounds = asyncio.run(play(task, rng, rate, whole_way=stage.whole_way))
        pieces = [("<|user|>" + task.instruction, 0.0)]
        for message, answer in rounds:
            pieces += [("<|assistant|>", 0.0), (message + "<|end|>", 1.0), ("<|user|>", 0.0), (answer, 0.1)]
        ids: list[int] = []
        weights: list[float] = []
        encoded = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
        for tokens, (_, weight) in zip(encoded, pieces, strict=True):
            ids += tokens
            weights += [weight] * len(tokens)
        return ids, weights


def batches(draw: Callable[[int], Row], steps: int, size: int, seed: int) -> Iterator[list[Row]]:
    """`size` rows for each step, of like length; a row begins with its token ids, and `draw` makes that of a number."""
    for step in range(steps):
        # Four batches' worth is drawn at once and cut by length, so that little is padding.
        if step % 4 == 0:
            pool = sorted((draw(step * size + i) for i in range(4 * size)), key=lambda row: len(row[0]))
            order = np.random.default_rng([seed, step]).permutation(4)
        part = int(order[step % 4])
        yield pool[part * size : (part + 1) * size]


def padded_ids(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """`[B, S]` token ids, filled up with the padding token."""
    ids = torch.ones((len(rows), max(map(len, rows))), dtype=torch.long)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return ids


def _padded(rows: list[tuple[list[int], list[float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = padded_ids([tokens for tokens, _ in rows])
    weights = torch.zeros(ids.shape)
    for row, (tokens, weight) in enumerate(rows):
        weights[row, : len(tokens)] = torch.tensor(weight)
    return ids, weights


ROPE = {"rope_type": "default", "rope_theta": 1000.0}


def model_config(vocab_size: int) -> LlamaConfig:
    """The shape that is shipped: head dimension 32, which vLLM's CPU build serves too."""
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


def token_losses(
    model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of each next token, and its weight: both flat."""
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses, weights[:, 1:].flatten()


def train_stage(
    model: LlamaForCausalLM, stage: Stage, seed: int, dialogues: type[Dialogues] = Dialogues
) -> list[dict[str, float]]:
    """One stage; returns its log."""
    log: list[dict[str, float]] = []
    parts = optimizers(model, stage.learning_rate)
    loader = DataLoader(dialogues(stage, seed), batch_size=None, num_workers=1, prefetch_factor=8)
    begun, tokens, running = time.perf_counter(), 0, 0.0
    for step, (ids, weights) in enumerate(loader):
        for part in parts:
            for group in part.param_groups:
                group["lr"] = stage.learning_rate * learning_rate_factor(step, stage.steps)
        losses, weight = token_losses(model, ids, weights)
        loss = (losses * weight).sum() / weight.sum()
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in parts:
            part.step()
        tokens += int((ids != 1).sum())
        policy = weight == 1.0
        running += float(losses[policy].mean().detach())
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - begun
            log.append({"step": step + 1, "loss": running / 50, "tokens": tokens, "seconds": round(seconds, 1)})
            print(stage.name, log[-1], flush=True)
            running = 0.0
    return log


def stages(again: int) -> list[Stage]:
    """All legs, the last one made so many times more."""
    return [*STAGES, *(replace(STAGES[-1], name=chr(ord("I") + number)) for number in range(again))]


def held_out_loss(model: LlamaForCausalLM) -> float:
    """Mean cross-entropy (nats) of the policy's tokens in dialogues that nothing is trained on."""
    total, count = 0.0, 0
    with torch.no_grad():
        for ids, weights in Dialogues(HELD_OUT, HELD_OUT_SEED):
            losses, weight = token_losses(model, ids, weights)
            policy = weight == 1.0
            total, count = total + float(losses[policy].sum()), count + int(policy.sum())
    return total / count


def main() -> None:
    """Run the stages that are not done yet and save the model in fp16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of steps")
    parser.add_argument("--again", type=int, default=0, help="times that the last stage is made once more")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(model_config(len(tokenizer)))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    for stage in stages(arguments.again):
        kept = arguments.folder / "stages" / stage.name
        if kept.exists():
            model = LlamaForCausalLM.from_pretrained(kept)
            continue
        scaled = replace(stage, steps=int(stage.steps * arguments.scale))
        log = train_stage(model, scaled, arguments.seed)
        model.save_pretrained(kept)
        (kept / "log.json").write_text(json.dumps(log))
    print(f"loss on held-out dialogues: {held_out_loss(model):.4f}")
    model.half().save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
