"""Make the base of a value model: the policy's weights, trained on expert play to predict the distance to the goal.

    python reproduce/crafting/pretrain_value.py FOLDER OUT [--steps 4000] [--layers N] [--seed 0]

FOLDER holds the policy. The expert is a cheap surrogate: it plays on past the horizon, so that a dialogue shows for
each of its states whether the goal is reached within k more steps, for every k up to REACH. This target is much denser
than a binary return. OUT gets the weights (float16) and the tokenizer: the base of a value adapter that is then trained
on the policy's own play (`make_value.py --base OUT`). With more layers than the policy, the base starts as the same
function.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from amc_agents.critics.render import DIALOGUE, Encoder
from amc_agents.envs.crafting.tasks import generate_task
from amc_agents.messages import split_turn
from amc_agents.training.fine_tuning import make_encoder
from amc_agents.types import Step, Trajectory
from reproduce.crafting.expert import HORIZON, play
from reproduce.crafting.train_policy import pool_order
from reproduce.policy_training import batches, optimizers, padded_ids, set_learning_rate, update

SPLIT = "policy"
"""The split that the policy was trained on, with other task numbers; "train" and "test" stay unseen."""
FIRST = ord("V") << 32
REACH = 24
"""Maximum number of steps ahead."""
PLAYED = HORIZON + REACH
BATCH = 16
ERROR_RATES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
OPTIMAL_STEPS = (5, 17)
LEARNING_RATE = 2e-3


class States(IterableDataset[Any]):
    """Batches of dialogues: token ids [B, S], rows and columns of the states' marks [M], and answers [M, REACH]."""

    def __init__(self, folder: Path, steps: int, seed: int) -> None:
        self.folder, self.steps, self.seed = folder, steps, seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        encoder = make_encoder(AutoTokenizer.from_pretrained(self.folder), DIALOGUE, None)
        first = FIRST + (self.seed << 24)
        draw = partial(dialogue, encoder, first)
        return map(batched, batches(draw, self.steps, BATCH, partial(pool_order, self.seed)))


def dialogue(encoder: Encoder, first: int, index: int) -> tuple[tuple[int, ...], tuple[int, ...], np.ndarray]:
    """Token ids of a dialogue up to the horizon, its states' marks, and `[states, REACH]` whether the goal is near."""
    number = first + index
    rng = np.random.default_rng(number)
    task = generate_task(number, SPLIT, optimal_steps=OPTIMAL_STEPS)
    rounds = asyncio.run(play(task, rng, float(rng.choice(ERROR_RATES)), whole_way=True, horizon=PLAYED))
    needed = len(rounds) if len(rounds) < PLAYED else PLAYED + 1
    steps = []
    for message, answer in rounds[:HORIZON]:
        thought, action = split_turn(message)
        steps.append(Step(action, answer, thought))
    # The last state of a dialogue that reached its goal has no target.
    row = encoder.rows(Trajectory(task, tuple(steps)))[0]
    marks = row.marks[: needed if needed <= HORIZON else HORIZON + 1]
    left = needed - np.arange(len(marks))
    return row.ids, marks, left[:, None] <= np.arange(1, REACH + 1)[None, :]


def batched(
    rows: list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad rows to tensors."""
    ids = padded_ids([tokens for tokens, _, _ in rows])
    counts = torch.tensor([len(marks) for _, marks, _ in rows])
    columns = torch.tensor([mark for _, marks, _ in rows for mark in marks])
    answers = torch.tensor(np.concatenate([near for _, _, near in rows]), dtype=torch.float32)
    return ids, torch.repeat_interleave(torch.arange(len(rows)), counts), columns, answers


def deepened(policy: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """Add layers to the policy that initially change nothing."""
    n_layers = policy.config.num_hidden_layers
    if layers < n_layers:
        raise SystemExit(f"the policy has {n_layers} layers: --layers {layers} would remove some")
    model = LlamaForCausalLM(LlamaConfig(**{**policy.config.to_dict(), "num_hidden_layers": layers}))
    model.load_state_dict(policy.state_dict(), strict=layers == n_layers)
    for layer in model.model.layers[n_layers:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def train(folder: Path, out: Path, steps: int, layers: int | None, seed: int) -> None:
    """Train all weights and a head that is discarded."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if layers is not None:
        model = deepened(model, layers)
    head = torch.nn.Linear(model.config.hidden_size, REACH)
    parts = optimizers(model, LEARNING_RATE)
    parts.append(torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0))
    weights = [*model.model.parameters(), *head.parameters()]
    start, running = time.perf_counter(), 0.0
    for step, (ids, rows, columns, answers) in enumerate(
        DataLoader(States(folder, steps, seed), batch_size=None, num_workers=1, prefetch_factor=8)
    ):
        set_learning_rate(parts, LEARNING_RATE, step, steps)
        hidden = model.model(input_ids=ids).last_hidden_state[rows, columns]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(head(hidden), answers)
        update(parts, loss, weights)
        running += float(loss.detach())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {running / 100:.4f} {time.perf_counter() - start:.0f} s", flush=True)
            running = 0.0
    model.half().save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--layers", type=int, help="default: the policy's")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.folder, arguments.out, arguments.steps, arguments.layers, arguments.seed)


if __name__ == "__main__":
    main()
