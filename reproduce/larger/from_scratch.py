"""Train a policy of 16 M parameters from scratch on the careless expert's dialogues, on a GPU.

Worker processes play, and a batch is drawn from the dialogues that were used least so far. The learning rate follows
the clock, so that the training ends after the given seconds, whatever the machine.
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
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from amc_agents.envs.workshop import generate_task
from amc_agents.models.embedded import model_folder
from reproduce.policy_training import ROPE, WeightedRow, dialogue_row, optimizers, token_losses, update
from reproduce.word_tokenizer import END, PAD
from reproduce.workshop.train_workshop import KINDS, SPLIT
from reproduce.workshop.workshop_expert import play

BATCH_TOKENS = 65_536
SENT = 64
"""Dialogues that a worker sends at a time."""
PLAYS = 3
"""Dialogues per task: the expert plays it with several rates of mistakes."""
LEARNING_RATE = 2e-3
LOG_EVERY = 200
WARM_UP = 100
"""Steps."""
ERROR_RATES = 0.0, 0.02, 0.05, 0.1, 0.2
CARELESS = 0.0, 0.2, 0.5
"""As for the shipped policy."""
STEPS = 3, 12
EASY, EASY_STEPS = 300, (3, 5)
"""The first tasks of each worker are short ones without mistakes."""
_WEIGHTS = np.array([0.0, 0.1, 1.0], dtype=np.float64)
"""Loss weights that a token can have."""
Array = np.ndarray


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
            yield dialogue_row(tokenizer, task.instruction, asyncio.run(play(task, rng, *rates)))
        number += n_workers


class Pool:
    """The dialogues that the workers have sent, in flat arrays."""

    def __init__(self, room: int) -> None:
        self._tokens, self._weights = np.zeros(room, dtype=np.uint16), np.zeros(room, dtype=np.uint8)
        self._starts, self._lengths, self._uses = (np.zeros(room // 100, dtype=np.int64) for _ in range(3))
        self.n, self.n_tokens = 0, 0

    def add(self, lengths: Array, tokens: Array, weights: Array) -> None:
        """Append dialogues, unless there is no room for them."""
        end, n = self.n_tokens + len(tokens), self.n + len(lengths)
        if end > len(self._tokens) or n > len(self._starts):
            return
        self._tokens[self.n_tokens : end], self._weights[self.n_tokens : end] = tokens, weights
        self._lengths[self.n : n] = lengths
        self._starts[self.n : n] = self.n_tokens + np.cumsum(lengths) - lengths
        self.n, self.n_tokens = n, end

    def batches(self, n: int, rng: np.random.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw about n batches of `BATCH_TOKENS` tokens each, `[B, S]`, from the dialogues that were used least."""
        wanted = min(self.n, n * BATCH_TOKENS * self.n // self.n_tokens)
        order = np.argpartition(self._uses[: self.n] + 2 * rng.random(self.n), wanted - 1)[:wanted]
        self._uses[order] += 1
        order = order[np.argsort(self._lengths[order], kind="stable")]
        made, first = [], 0
        while first < len(order):
            last = first
            while last < len(order) and (last + 1 - first) * self._lengths[order[last]] <= BATCH_TOKENS:
                last += 1
            made.append(self._padded(order[first:last]))
            first = last
        return [made[number] for number in rng.permutation(len(made))]

    def _padded(self, numbers: Array) -> tuple[torch.Tensor, torch.Tensor]:
        ids = np.full((len(numbers), int(self._lengths[numbers].max())), PAD, dtype=np.int64)
        weights = np.zeros(ids.shape, dtype=np.float32)
        for row, number in enumerate(numbers):
            start, length = self._starts[number], self._lengths[number]
            ids[row, :length] = self._tokens[start : start + length]
            weights[row, :length] = _WEIGHTS[self._weights[start : start + length]]
        return torch.from_numpy(ids), torch.from_numpy(weights)


def _played(worker: int, n_workers: int, folder: str, sent: Any) -> None:
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows: list[WeightedRow] = []
    for row in dialogues(worker, n_workers, tokenizer):
        rows.append(row)
        if len(rows) == SENT:
            lengths = np.array([len(ids) for ids, _ in rows])
            tokens = np.concatenate([np.array(ids, dtype=np.uint16) for ids, _ in rows])
            weights = np.concatenate([np.searchsorted(_WEIGHTS, each).astype(np.uint8) for _, each in rows])
            sent.put((lengths, tokens, weights))
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
    parts, parameters = optimizers(model, LEARNING_RATE), list(model.parameters())
    context = get_context("spawn")
    sent = context.Queue()
    workers = [
        context.Process(target=_played, args=(number, n_workers, str(source), sent), daemon=True)
        for number in range(n_workers)
    ]
    for worker in workers:
        worker.start()
    pool = Pool(200_000_000)
    while pool.n < n_workers * SENT:
        try:
            pool.add(*sent.get(timeout=120))
        except queue.Empty:
            raise RuntimeError("no dialogue from the experts for two minutes") from None
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
    log, start, step, n_tokens, losses = [], time.perf_counter(), 0, 0, torch.zeros((), device=device)
    while (share := (time.perf_counter() - start) / seconds) < 1:
        while not sent.empty():
            pool.add(*sent.get())
        if not waiting:
            waiting = pool.batches(8, rng)
        ids, weights = (each.to(device) for each in waiting.pop())
        for part in parts:
            for group in part.param_groups:
                group["lr"] = LEARNING_RATE * _rate(step, share)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            token_loss, weight = token_losses(model, ids, weights)
        update(parts, (token_loss.float() * weight).sum() / weight.sum(), parameters)
        spoken = weight == 1.0
        losses += (token_loss.detach().float() * spoken).sum() / spoken.sum()
        n_tokens += ids.numel()
        step += 1
        if step % LOG_EVERY == 0:
            seconds_so_far = round(time.perf_counter() - start, 1)
            loss, losses = round(float(losses) / LOG_EVERY, 4), torch.zeros((), device=device)
            line = {"step": step, "loss": loss, "dialogues": pool.n, "tokens": n_tokens, "seconds": seconds_so_far}
            log.append(line)
            print(line, flush=True)
    for worker in workers:
        worker.kill()
    model.half().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(source, file), folder)
    about = {"parameters": sum(each.numel() for each in parameters), "log": log}
    (folder / "training.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _rate(step: int, share: float) -> float:
    """Warm-up, flat for half of the time, then a cosine down to 2%."""
    late = max(0.0, 2 * min(share, 1.0) - 1)
    return min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * late)))
