"""Train a policy of 16 M parameters from scratch on the careless expert's dialogues, on a GPU.

Worker processes play; a batch is trained on again while no new one is there. The learning rate follows the clock, so
that the training ends after the given seconds, whatever the machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import queue
import shutil
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from policy_training import ROPE, WeightedRow, optimizers, padded, token_losses, update, weighted_row
from train_workshop import KINDS, SPLIT
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from word_tokenizer import END, PAD
from workshop_expert import play

from amc_agents.envs.workshop import generate_task
from amc_agents.models.embedded import model_folder

BATCH = 64
PLAYS = 3
"""Dialogues per task: the expert plays it with several rates of mistakes."""
USES = 6
"""How often a batch is trained on, at most."""
LEARNING_RATE = 3e-3
WARM_UP = 100
"""Steps."""
ERROR_RATES = 0.0, 0.02, 0.05, 0.1, 0.2
CARELESS = 0.0, 0.2, 0.5
"""As for the shipped policy."""
STEPS = 3, 12
EASY, EASY_STEPS = 300, (3, 5)
"""The first tasks of each worker are short ones without mistakes."""


def llama(vocabulary: int, *, hidden: int = 512, layers: int = 6, heads: int = 8) -> LlamaForCausalLM:
    """Create a Llama with one key-value head, whose cache is small: 16.6 M parameters by default."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=1, intermediate_size=hidden * 11 // 4, max_position_embeddings=4096,
        rope_parameters=ROPE, tie_word_embeddings=True, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=END,
        pad_token_id=PAD,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def dialogues(worker: int, n_workers: int, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Yield the dialogues of a worker, without end."""
    number = worker
    while True:
        rng = np.random.default_rng([1, number])
        easy = number // n_workers < EASY
        kind = KINDS[number // n_workers % 3]
        task = generate_task((ord("L") << 32) + number, SPLIT, kind, optimal_steps=EASY_STEPS if easy else STEPS)
        for _ in range(PLAYS):
            rates = (0.0, 0.0) if easy else (float(rng.choice(ERROR_RATES)), float(rng.choice(CARELESS)))
            pieces = [("<|user|>" + task.instruction, 0.0)]
            for message, answer in asyncio.run(play(task, rng, *rates)):
                pieces += [("<|assistant|>", 0.0), (message + "<|end|>", 1.0), ("<|user|>", 0.0), (answer, 0.1)]
            yield weighted_row(tokenizer, pieces)
        number += n_workers


def _played(worker: int, n_workers: int, folder: str, batches: Any) -> None:
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows: list[WeightedRow] = []
    for row in dialogues(worker, n_workers, tokenizer):
        rows.append(row)
        if len(rows) == 2 * BATCH:
            rows.sort(key=lambda each: len(each[0]))
            batches.put(rows[:BATCH])
            batches.put(rows[BATCH:])
            rows = []


def train(folder: Path, seconds: float, n_workers: int, seed: int = 0, **shape: int) -> None:
    """Train, and save the model with the shipped policy's tokenizer.

    Args:
        folder: of the model.
        seconds: of training.
        n_workers: processes in which the expert plays.
        seed: of the initial weights and the order of batches.
        shape: of the Llama, if not the default.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    source, device = model_folder("workshop"), "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    made: Any = llama(len(tokenizer), **shape)
    model: LlamaForCausalLM = made.to(device)
    parts = optimizers(model, LEARNING_RATE)
    context = get_context("spawn")
    batches = context.Queue(4 * n_workers)
    workers = [
        context.Process(target=_played, args=(number, n_workers, str(source), batches), daemon=True)
        for number in range(n_workers)
    ]
    for worker in workers:
        worker.start()
    kept: list[list[Any]] = []
    log, start, step, n_dialogues, n_tokens, losses = [], 0.0, 0, 0, 0, torch.zeros((), device=device)
    while not start or time.perf_counter() - start < seconds:
        fresh = not kept or not batches.empty()
        if fresh:
            try:
                kept.append([padded(batches.get(timeout=120)), 0])
            except queue.Empty:
                raise RuntimeError("no batch from the experts for two minutes") from None
            n_dialogues += BATCH
            start = start or time.perf_counter()
        number = len(kept) - 1 if fresh else int(rng.integers(len(kept)))
        (ids, weights), uses = kept[number]
        share = (time.perf_counter() - start) / seconds
        for part in parts:
            for group in part.param_groups:
                group["lr"] = LEARNING_RATE * _rate(step, share)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            token_loss, weight = token_losses(model, ids.to(device), weights.to(device))
        update(parts, (token_loss.float() * weight).sum() / weight.sum(), list(model.parameters()))
        losses += token_loss.detach()[weight == 1.0].mean()
        n_tokens += ids.numel()
        kept[number][1] = uses + 1
        if uses + 1 == USES:
            kept.pop(number)
        step += 1
        if step % 100 == 0:
            seconds_so_far = round(time.perf_counter() - start, 1)
            loss, losses = round(float(losses) / 100, 4), torch.zeros((), device=device)
            log.append(
                {"step": step, "loss": loss, "dialogues": n_dialogues, "tokens": n_tokens, "seconds": seconds_so_far}
            )
            print(log[-1], flush=True)
    for worker in workers:
        worker.kill()
    model.half().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(source, file), folder)
    about = {"parameters": sum(each.numel() for each in model.parameters()), "log": log}
    (folder / "training.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _rate(step: int, share: float) -> float:
    """Warm-up, flat for half of the time, then a cosine down to 2%."""
    late = max(0.0, 2 * min(share, 1.0) - 1)
    return min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * late)))
