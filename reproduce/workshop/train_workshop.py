"""Train the policy of the workshop worlds on the CPU: a crafting policy, trained on.

    python reproduce/workshop/train_workshop.py FOLDER [--base crafting]
        [--scale 1.0] [--seed 0]

One more stage of `policy_training.py`, on a careless expert's dialogues in all three worlds. The vocabulary gets the
new words at its end, so that the embeddings of all others are kept.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from amc_agents.envs.workshop import generate_task
from amc_agents.envs.workshop.tasks import Kind
from amc_agents.models.embedded import model_folder
from reproduce.crafting.tokenizer import make_tokenizer
from reproduce.crafting.train_policy import pool_order
from reproduce.policy_training import DialogueSource, Stage, train_policy
from reproduce.workshop.workshop_expert import play

SPLIT = "policy"
"""Seed stream of the policy's tasks; "train" and "test" stay unseen."""
KINDS: tuple[Kind, ...] = ("stock", "hidden", "both")
NEW_WORDS = ("Stock:", " without", " junk")


@dataclass(frozen=True)
class WorkshopStage(Stage):
    """A stage, and the dialogues it trains on."""

    careless: tuple[float, ...] = (0.0, 0.2, 0.5)
    """Probabilities of a wrong habit, drawn once per dialogue."""
    optimal_steps: tuple[int, int] = (3, 12)


STAGES = (WorkshopStage("W", 1000, 3e-3, (0.0, 0.02, 0.05, 0.1, 0.2)),)


def workshop_tokenizer() -> PreTrainedTokenizerFast:
    """Build the crafting tokenizer with the new words."""
    return make_tokenizer(NEW_WORDS)


def dialogue(stage: WorkshopStage, seed: int, index: int) -> tuple[str, list[tuple[str, str]]]:
    """Play a dialogue: the first message, and rounds of the expert's message and the world's answer."""
    number = (ord(stage.name[0]) << 32) + (seed << 24) + index
    rng = np.random.default_rng(number)
    task = generate_task(number, SPLIT, KINDS[index % 3], optimal_steps=stage.optimal_steps)
    rates = float(rng.choice(stage.error_rates)), float(rng.choice(stage.careless))
    return task.instruction, asyncio.run(play(task, rng, *rates))


def main() -> None:
    """Train the stages that are not finished yet and save the model in float16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", default="crafting", help="the crafting policy: a name or folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = workshop_tokenizer()
    model = LlamaForCausalLM.from_pretrained(model_folder(options.base), dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    source = DialogueSource(tokenizer, dialogue, pool_order)
    model = train_policy(model, STAGES, source, options.folder, seed=options.seed, scale=options.scale)
    model.half().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
