"""Fine-tune a whole policy on weighted dialogues; the learning rate is chosen on held-out tasks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

from amc_agents.models.embedded import model_folder
from amc_agents.models.tokenizers import ASSISTANT
from amc_agents.training.fine_tuning import warm_up_and_cosine
from reproduce.beyond.play import Policy
from reproduce.policy_training import padded, token_losses, update

Imitated = Sequence[tuple[list[int], float]]
"""A task's dialogues as token ids, and their shares, which sum to 1."""
Row = tuple[list[int], list[float]]
BATCH = 12
RATES, EPOCHS = (1e-4, 3e-4, 1e-3), 3
HELD_OUT = 0.2


def fine_tuned(base: str, tasks: Sequence[Imitated], out: Path, seed: int = 0) -> dict[str, Any]:
    """Choose the learning rate on a fifth of the tasks, train on all, and write the policy to a folder.

    Returns:
        What was tried: the losses on held-out tasks, by learning rate and of the policy before.
    """
    torch.set_num_threads(1)
    policy, rng = Policy(base), np.random.default_rng(seed)
    assistant, end = policy.tokenizer.vocabulary[ASSISTANT], policy.tokenizer.end_id
    rows = [[(tokens, token_weights(tokens, share, assistant, end)) for tokens, share in task] for task in tasks]
    order = rng.permutation(len(rows)).tolist()
    n_held_out = round(HELD_OUT * len(rows))
    held_out, training = (
        [row for index in part for row in rows[index]] for part in (order[:n_held_out], order[n_held_out:])
    )
    tried = {"before": loss_of(_loaded(base), held_out)}
    for rate in RATES:
        tried[f"{rate:g}"] = loss_of(_trained(base, training, rate, seed), held_out)
    rate = min(RATES, key=lambda each: tried[f"{each:g}"])
    shutil.copytree(model_folder(base), out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("value", "__pycache__"))
    everything = [row for task in rows for row in task]
    _trained(base, everything, rate, seed).half().save_pretrained(out)
    return {"tasks": len(tasks), "dialogues": len(everything), "rate": rate, "held_out_losses": tried}


def token_weights(tokens: Sequence[int], share: float, assistant: int, end: int) -> list[float]:
    """Give the tokens of the agent's turns, their ends included, the dialogue's share as weight, others 0."""
    weights, speaking = [], False
    for token in tokens:
        weights.append(share if speaking else 0.0)
        speaking = token == assistant or (speaking and token != end)
    return weights


def _loaded(base: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(model_folder(base), dtype=torch.float32)


def _trained(base: str, rows: Sequence[Row], rate: float, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model, rng = _loaded(base), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    per_epoch = -(-len(rows) // BATCH)
    # The same divisor for every batch: a dialogue counts by its share, whichever others are beside it.
    divisor = sum(sum(weights) for _, weights in rows) / per_epoch
    for step in range(EPOCHS * per_epoch):
        if step % per_epoch == 0:
            order = rng.permutation(len(rows)).tolist()
        at = step % per_epoch * BATCH
        optimizer.param_groups[0]["lr"] = rate * warm_up_and_cosine(step, EPOCHS * per_epoch, 0.1)
        losses, weights = token_losses(model, *padded([rows[index] for index in order[at : at + BATCH]]))
        update([optimizer], (losses * weights).sum() / divisor, list(model.parameters()))
    return model


def loss_of(model: LlamaForCausalLM, rows: Sequence[Row]) -> float:
    """Return the weighted mean loss of the agent's tokens."""
    total = mass = 0.0
    with torch.no_grad():
        for at in range(0, len(rows), BATCH):
            losses, weights = token_losses(model, *padded(rows[at : at + BATCH]))
            total += float((losses * weights).sum())
            mass += float(weights.sum())
    return total / mass
