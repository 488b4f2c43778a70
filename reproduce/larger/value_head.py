"""A value model of the same size: the policy with a head on every state, trained on the outcomes of its own runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reproduce.larger.batched import Batched, Tokens, loaded, padded

BATCH = 128
LEARNING_RATE = 3e-4
EPOCHS = 2
_READ = 512


@dataclass(frozen=True)
class Outcome:
    """A run for training."""

    task: int
    dialogue: Tokens
    """With the token after which the agent would speak at its end."""
    success: bool


class ValueModel:
    """Reads dialogues.

    Args:
        policy: the body.
        head: `[hidden, 1]`.
        turn: the token at whose place a state is judged: the one after which the agent speaks.
    """

    def __init__(self, policy: Batched, head: torch.nn.Linear, turn: int) -> None:
        self.policy, self.head, self.turn = policy, head, turn

    @classmethod
    def load(cls, folder: Path, turn: int) -> ValueModel:
        """Load what `train` saved."""
        policy = Batched.load(folder, end=-1, n_rows=1, seed=0)
        head = torch.nn.Linear(policy.model.config.hidden_size, 1)
        head.load_state_dict(torch.load(folder / "head.pt", weights_only=True))
        return cls(policy, head.to(policy.device), turn)

    def logits(self, ids: Tensor) -> Tensor:
        """`[B, S]` log-odds of success at every place."""
        hidden = self.policy.model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits: Tensor = self.head(hidden.float())
        return logits[..., 0]

    @torch.inference_mode()
    def values(self, dialogues: Sequence[Tokens]) -> np.ndarray:
        """`[N]` probabilities of success."""
        order = sorted(range(len(dialogues)), key=lambda number: len(dialogues[number]))
        found = np.zeros(len(dialogues))
        for first in range(0, len(order), _READ):
            some = order[first : first + _READ]
            hidden = self.policy.read([dialogues[number] for number in some])
            last = torch.tensor([len(dialogues[number]) - 1 for number in some], device=hidden.device)
            picked = hidden[torch.arange(len(some), device=hidden.device), last].float()
            found[some] = self.head(picked)[:, 0].sigmoid().cpu().numpy()
        return found


def train(source: Path, folder: Path, runs: Sequence[Outcome], turn: int, seed: int, *, batch: int = BATCH) -> None:
    """Train all weights by the cross-entropy of the outcome at every state; a tenth of the tasks is held out.

    Args:
        source: folder of the policy.
        folder: of the value model.
        runs: with their outcomes.
        turn: the token at whose place a state is judged.
        seed: of the head and the order.
        batch: dialogues per step.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = loaded(source, torch.float32, device)
    value = ValueModel(Batched(model, -1, 1, seed), torch.nn.Linear(model.config.hidden_size, 1).to(device), turn)
    parameters = [*model.model.parameters(), *value.head.parameters()]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    held = [run for run in runs if run.task % 10 == 0]
    kept = [run for run in runs if run.task % 10]
    n_steps, start, log = EPOCHS * (len(kept) // batch), time.perf_counter(), []
    model.train()
    for step in range(n_steps):
        part = step % (len(kept) // batch)
        if part == 0:
            order = batches(kept, batch, rng)
        share = step / n_steps
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 50, 0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = _loss(value, order[part])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % max(1, n_steps // 8) == 0:
            with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                of_held = [float(_loss(value, some)) for some in batches(held[:2048], min(batch, len(held)), rng)]
            seconds = round(time.perf_counter() - start, 1)
            log.append({"step": step + 1, "loss": round(float(loss), 4), "held_out": round(float(np.mean(of_held)), 4)})
            print(log[-1], seconds, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    torch.save(value.head.cpu().state_dict(), folder / "head.pt")
    about = {"runs": len(runs), "success": float(np.mean([run.success for run in runs])), "log": log}
    (folder / "training.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def batches(runs: Sequence[Outcome], size: int, rng: np.random.Generator) -> list[list[Outcome]]:
    """Make batches of runs of similar length, in random order."""
    mixed = [runs[number] for number in rng.permutation(len(runs))]
    parts = []
    for first in range(0, len(mixed), 8 * size):
        pool = sorted(mixed[first : first + 8 * size], key=lambda run: len(run.dialogue))
        parts += [pool[at : at + size] for at in range(0, len(pool) - size + 1, size)]
    return [parts[number] for number in rng.permutation(len(parts))]


def _loss(value: ValueModel, runs: Sequence[Outcome]) -> Tensor:
    ids = padded([run.dialogue for run in runs]).to(value.policy.device)
    success = torch.tensor([float(run.success) for run in runs], device=ids.device)[:, None].expand(ids.shape)
    judged = ids == value.turn
    logits = value.logits(ids)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits[judged], success[judged])
