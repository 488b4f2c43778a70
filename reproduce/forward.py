"""Train a forward model: a LoRA adapter with which an embedded policy predicts observations.

    python reproduce/forward.py WORLD [WORLD ...] --data DATA [--out FOLDER] [--tasks 300] [--epochs 12]

The policy that the worlds share plays tasks of the split "train" at temperature 1; DATA keeps the trajectories. The
loss covers only the observations and the token after each, so that the model learns where an observation ends. The
adapter is written to `forward/` inside the policy's folder (or to --out) and replaces the world in imagined rollouts.
Prints the share of observations of held-out tasks that it predicts exactly. Needs the extra `train`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from rich.progress import Progress as Bar
from transformers import AutoModelForCausalLM

from amc_agents.critics.render import turn
from amc_agents.envs.registry import world
from amc_agents.models.embedded import EmbeddedChatModel, WordTokenizer, model_folder
from amc_agents.models.tokenizers import ASSISTANT
from amc_agents.runtime.text_agent import text_agent
from amc_agents.training.collecting import CollectionProgress, collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.fine_tuning import save_adapter
from amc_agents.types import Trajectory
from reproduce.embedded_imagination import FORWARD, EmbeddedImagination

FIRST_TASK = 600_000
"""First of the training tasks that serve no other purpose."""
HELD_OUT = 40
"""Number of held-out trajectories."""
Row = tuple[list[int], list[int]]
"""Token ids, and targets (-100 where nothing is learnt)."""


def row(trajectory: Trajectory, tokenizer: WordTokenizer) -> Row:
    """Tokenize a trajectory as the policy reads it."""
    ids = tokenizer.encode_chat([("user", trajectory.task.instruction)])
    targets = [-100] * len(ids)
    for step in trajectory.steps:
        turn_ids = tokenizer.encode_chat([("assistant", turn(step)), ("user", "")], add_generation_prompt=False)
        observed_ids = [*tokenizer.encode(step.observation), tokenizer.vocabulary[ASSISTANT]]
        # The token before the agent's turn is already there.
        ids += [*turn_ids[1:], *observed_ids]
        targets += [*[-100] * (len(turn_ids) - 1), *observed_ids]
    return ids, targets


def batches(rows: Sequence[Row], size: int, rng: np.random.Generator) -> list[list[Row]]:
    """Make batches of rows of similar length, in random order."""
    order = sorted(rng.permutation(len(rows)), key=lambda index: len(rows[index][0]) // 64)
    parts = [[rows[index] for index in order[at : at + size]] for at in range(0, len(order), size)]
    return [parts[index] for index in rng.permutation(len(parts))]


def padded(batch: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad a batch to `[B, S]` ids and targets."""
    length = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row_ids + [0] * (length - len(row_ids)) for row_ids, _ in batch])
    return ids, torch.tensor([targets + [-100] * (length - len(targets)) for _, targets in batch])


def train(folder: Path, rows: Sequence[Row], options: argparse.Namespace) -> torch.nn.Module:
    """Train an adapter on the policy."""
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    base = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    shape = LoraConfig(task_type="CAUSAL_LM", r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear")
    model = get_peft_model(base, shape)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, weight_decay=0.0)
    steps = options.epochs * -(-len(rows) // options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.learning_rate, total_steps=steps, pct_start=0.05)
    for epoch in range(options.epochs):
        losses = []
        for batch in batches(rows, options.batch_size, rng):
            ids, targets = padded(batch)
            loss = model(input_ids=ids, labels=targets).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", flush=True)
    return model


async def exactness(folder: Path, adapter: Path, held_out: Sequence[Trajectory]) -> tuple[float, float]:
    """Return the shares of observations that are predicted exactly, and that do not end."""
    states = [play.prefix(length) for play in held_out for length in range(1, len(play.steps) + 1)]
    hidden = [replace(state, steps=(*state.steps[:-1], replace(state.steps[-1], observation=""))) for state in states]
    imagined = await EmbeddedImagination(str(folder), adapter=adapter).imagine(hidden)
    pairs = [
        (guess.steps[-1].observation, state.steps[-1].observation)
        for guess, state in zip(imagined, states, strict=True)
    ]
    return (
        float(np.mean([guess.strip() == real.strip() for guess, real in pairs])),
        float(np.mean([not guess for guess, _ in pairs])),
    )


def _counter(bar: Bar, title: str, total: int) -> Callable[[CollectionProgress], None]:
    """Add a progress line, and return the callback that advances it."""
    line = bar.add_task(title, total=total)
    return lambda done: bar.update(line, completed=done.tasks)


def main() -> None:
    """Play, train, and print how well the model predicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="default: forward/ inside the policy's folder")
    parser.add_argument("--model", help="policy; default: the world's")
    parser.add_argument("--tasks", type=int, default=300, help="tasks per world")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    policy = options.model or world(options.worlds[0]).model
    if policy is None:
        parser.error(f"the world {options.worlds[0]} has no default policy: choose one with --model")
    folder = model_folder(policy)
    played: list[Trajectory] = []
    for name in options.worlds:
        spec = world(name)
        tasks = list(spec.tasks(options.tasks, "train", FIRST_TASK))
        with Bar() as bar:
            show = _counter(bar, f"playing {name}", len(tasks))
            collect(
                text_agent(EmbeddedChatModel(model=policy, temperature=1.0)), tasks, spec.make, 1, options.data / name,
                horizon=spec.horizon, policy=folder.name, seed=options.seed,
                settings={"temperature": 1.0, "split": "train", "first": FIRST_TASK},
                progress=show,
            )  # fmt: skip
        played += read_trajectories(options.data / name)
    np.random.default_rng(options.seed).shuffle(played)
    tokenizer = WordTokenizer.from_folder(folder)
    model = train(folder, [row(play, tokenizer) for play in played[HELD_OUT:]], options)
    out = options.out or folder / FORWARD
    save_adapter(model, out)
    exact, endless = asyncio.run(exactness(folder, out, played[:HELD_OUT]))
    print(f"{exact:.3f} of the held-out observations exact, {endless:.3f} without an end")


if __name__ == "__main__":
    main()
