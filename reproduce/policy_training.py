"""Training of small policies from scratch on an expert's dialogues, on the CPU.

A training has stages, each with a warm-up, a flat part and a cosine decay; Muon updates matrices, AdamW the rest. Loss
weights: 1 on the policy's tokens, 0.1 on observations, 0 on the first message. A finished stage is kept in
FOLDER/stages and the current stage every 100 steps, so that an interrupted training resumes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from reproduce.word_tokenizer import END, PAD

Row = TypeVar("Row", bound=tuple[Any, ...])
WeightedRow = tuple[list[int], list[float]]
"""Token ids of a dialogue, and the loss weight of each."""
BATCH = 12
POOL = 4
"""Batches that are drawn and sorted together."""
WARM_UP = 60
KEEP_EVERY = 100
ROPE = {"rope_type": "default", "rope_theta": 1000.0}


@dataclass(frozen=True)
class Stage:
    """A stage of a training."""

    name: str
    steps: int
    learning_rate: float
    error_rates: tuple[float, ...]
    """The expert's error rate is drawn from these once per dialogue, so that failures persist."""


SomeStage = TypeVar("SomeStage", bound=Stage)


@dataclass(frozen=True)
class DialogueSource(Generic[SomeStage]):
    """An expert's dialogues in one world."""

    tokenizer: PreTrainedTokenizerFast
    play: Callable[[SomeStage, int, int], tuple[str, Sequence[tuple[str, str]]]]
    """(stage, seed, number) -> the first message, and rounds of the expert's message and the world's answer."""
    pool_order: Callable[[int, int], np.random.Generator]
    """(seed, number of a pool) -> generator that orders the batches of the pool."""


class Dialogues(IterableDataset[Any], Generic[SomeStage]):
    """Batches of a stage's dialogues: `[B, S]` token ids and loss weights.

    Args:
        source: where dialogues come from.
        stage: the stage.
        seed: seed of the training.
        first: the step to start from.
    """

    def __init__(self, source: DialogueSource[SomeStage], stage: SomeStage, seed: int, first: int = 0) -> None:
        self.source, self.stage, self.seed, self.first = source, stage, seed, first

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = partial(self.source.pool_order, self.seed)
        return map(padded, batches(self._row, self.stage.steps, BATCH, order, self.first))

    def _row(self, number: int) -> WeightedRow:
        return dialogue_row(self.source.tokenizer, *self.source.play(self.stage, self.seed, number))


def batches(
    draw: Callable[[int], Row], steps: int, size: int, order: Callable[[int], np.random.Generator], first: int = 0
) -> Iterator[list[Row]]:
    """Yield `size` rows of similar length per step.

    Four batches are drawn as a pool, sorted by length and cut, so that little is padding.

    Args:
        draw: makes the row of a number; a row begins with its token ids.
        steps: number of batches of the whole training.
        size: rows of a batch.
        order: number of a pool -> generator that orders its batches.
        first: the step to start from.
    """
    pool: list[Row] = []
    for step in range(first, steps):
        number, part = divmod(step, POOL)
        if part == 0 or not pool:
            start = number * POOL * size
            pool = sorted((draw(start + i) for i in range(POOL * size)), key=lambda row: len(row[0]))
            places = order(number).permutation(POOL)
        place = int(places[part])
        yield pool[place * size : (place + 1) * size]


def dialogue_row(tokenizer: Any, first: str, rounds: Sequence[tuple[str, str]]) -> WeightedRow:
    """Tokenize a first message and rounds of the expert's message and the world's answer, with their loss weights."""
    pieces = [("<|user|>" + first, 0.0)]
    for message, answer in rounds:
        pieces += [("<|assistant|>", 0.0), (message + "<|end|>", 1.0), ("<|user|>", 0.0), (answer, 0.1)]
    return weighted_row(tokenizer, pieces)


def weighted_row(tokenizer: Any, pieces: Sequence[tuple[str, float]]) -> WeightedRow:
    """Tokenize texts separately and give each token the weight of its text."""
    ids: list[int] = []
    weights: list[float] = []
    encoded = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
    for tokens, (_, weight) in zip(encoded, pieces, strict=True):
        ids += tokens
        weights += [weight] * len(tokens)
    return ids, weights


def padded_ids(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Pad token ids to `[B, S]`."""
    ids = torch.full((len(rows), max(map(len, rows))), PAD, dtype=torch.long)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return ids


def padded(rows: Sequence[WeightedRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad a batch to `[B, S]` token ids and loss weights."""
    ids = padded_ids([tokens for tokens, _ in rows])
    weights = torch.zeros(ids.shape)
    for row, (tokens, weight) in enumerate(rows):
        weights[row, : len(tokens)] = torch.tensor(weight)
    return ids, weights


def small_llama(
    vocab_size: int, *, hidden: int = 96, heads: int = 3, intermediate: int = 256, context: int = 4096
) -> LlamaForCausalLM:
    """Create a Llama of three layers with head dimension 32, which vLLM's CPU build can serve."""
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=hidden, num_hidden_layers=3, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=intermediate, max_position_embeddings=context,
        rope_parameters=ROPE, tie_word_embeddings=True, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=END,
        pad_token_id=PAD,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def optimizers(model: LlamaForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Create Muon for the layers' matrices and AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def set_learning_rate(parts: Sequence[torch.optim.Optimizer], highest: float, step: int, steps: int) -> None:
    """Set the learning rate of a step: warm-up, flat for half of the steps, then a cosine down to 2%."""
    if step < WARM_UP:
        factor = (step + 1) / WARM_UP
    else:
        share = (step - steps / 2) / (steps / 2)
        factor = 1.0 if share <= 0 else 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))
    for part in parts:
        for group in part.param_groups:
            group["lr"] = highest * factor


def update(
    parts: Sequence[torch.optim.Optimizer], loss: torch.Tensor, parameters: Sequence[torch.nn.Parameter]
) -> None:
    """Make one optimizer step, with gradients clipped to norm 1."""
    for part in parts:
        part.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for part in parts:
        part.step()


def token_losses(
    model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy of each next token, and its weight; both flat."""
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses, weights[:, 1:].flatten()


def train_policy(
    model: LlamaForCausalLM,
    stages: Sequence[SomeStage],
    source: DialogueSource[SomeStage],
    folder: Path,
    *,
    seed: int,
    scale: float,
) -> LlamaForCausalLM:
    """Train the stages that are not finished yet.

    Args:
        model: the model to train, with initial weights.
        stages: the stages, in order.
        source: where dialogues come from.
        folder: finished stages are kept in its folder `stages`.
        seed: seed of the dialogues.
        scale: factor on the number of steps.

    Returns:
        The model after the last stage.
    """
    for stage in stages:
        kept = folder / "stages" / stage.name
        if kept.exists():
            model = LlamaForCausalLM.from_pretrained(kept)
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        current = kept.with_suffix(".pt")
        log = _train_stage(model, replace(stage, steps=int(stage.steps * scale)), source, seed, current)
        model.save_pretrained(kept)
        (kept / "log.json").write_text(json.dumps(log))
        current.unlink(missing_ok=True)
    return model


def _train_stage(
    model: LlamaForCausalLM,
    stage: SomeStage,
    source: DialogueSource[SomeStage],
    seed: int,
    current: Path,
) -> list[dict[str, float]]:
    """Train a stage, resumed from the file `current` if it exists, and return its log."""
    parts = optimizers(model, stage.learning_rate)
    first, log = _resume(current, model, parts) if current.exists() else (0, [])
    loader = DataLoader(Dialogues(source, stage, seed, first), batch_size=None, num_workers=1, prefetch_factor=8)
    start, n_tokens, running = time.perf_counter(), 0, 0.0
    for step, (ids, weights) in enumerate(loader, start=first):
        set_learning_rate(parts, stage.learning_rate, step, stage.steps)
        losses, weight = token_losses(model, ids, weights)
        update(parts, (losses * weight).sum() / weight.sum(), list(model.parameters()))
        n_tokens += int((ids != PAD).sum())
        running += float(losses[weight == 1.0].mean().detach())
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - start
            log.append({"step": step + 1, "loss": running / 50, "tokens": n_tokens, "seconds": round(seconds, 1)})
            print(stage.name, log[-1], flush=True)
            running = 0.0
        if (step + 1) % KEEP_EVERY == 0:
            state = {"step": step + 1, "log": log, "model": model.state_dict()}
            part_file = current.with_suffix(".part")
            torch.save({**state, "optimizers": [part.state_dict() for part in parts]}, part_file)
            part_file.replace(current)
    return log


def _resume(
    current: Path, model: LlamaForCausalLM, parts: Sequence[torch.optim.Optimizer]
) -> tuple[int, list[dict[str, float]]]:
    """Load the state of an interrupted stage, and return its next step and its log."""
    state = torch.load(current, weights_only=True)
    model.load_state_dict(state["model"])
    for part, values in zip(parts, state["optimizers"], strict=True):
        part.load_state_dict(values)
    return state["step"], state["log"]
