"""Train the embedded crafting policy from scratch, on the CPU.

    python reproduce/crafting/train_policy.py FOLDER [--seed 0] [--scale 1.0] [--again 0]

Five stages of `policy_training.py` on a noisy expert's dialogues. Seeds differ much in how soon they learn to follow
recipes down: `--again` repeats the last stage with new dialogues. At the end it prints the loss on the policy's tokens
of dialogues that are never trained on.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from amc_agents.envs.crafting.tasks import generate_task
from reproduce.crafting.expert import play
from reproduce.crafting.tokenizer import make_tokenizer
from reproduce.policy_training import BATCH, Dialogues, DialogueSource, Stage, small_llama, token_losses, train_policy

SPLIT = "policy"
"""Seed stream of the policy's books; "train" and "test" stay unseen."""


@dataclass(frozen=True)
class CraftingStage(Stage):
    """A stage, and the dialogues it trains on."""

    optimal_steps: tuple[int, int] = (3, 14)
    easy_share: float = 0.0
    """Share of the first steps that train on short tasks without mistakes (2 to 7 optimal steps)."""
    whole_way: bool = False
    """Thoughts lead down to the sub-goal recipe by recipe; else they state only the sub-goal's recipe."""


RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
STAGES = (
    CraftingStage("C", 3600, 4e-3, (0.02, 0.02, 0.15, 0.15, 0.35, 0.5), (2, 14), easy_share=0.4),
    CraftingStage("D", 2400, 3e-3, RATES, (3, 12)),
    CraftingStage("E", 1800, 3e-3, RATES),
    CraftingStage("F", 5000, 3e-3, RATES),
    CraftingStage("G", 4000, 3e-3, RATES, whole_way=True),
)
HELD_OUT = replace(STAGES[-1], name="held-out", steps=16)
HELD_OUT_SEED = 99
"""Seed of the held-out dialogues; no training uses it."""


def dialogue(stage: CraftingStage, seed: int, index: int) -> tuple[str, list[tuple[str, str]]]:
    """Play a dialogue: the first message, and rounds of the expert's message and the world's answer."""
    number = (ord(stage.name[0]) << 32) + (seed << 24) + index
    rng = np.random.default_rng(number)
    easy = index < stage.easy_share * stage.steps * BATCH
    steps, rate = ((2, 7), 0.0) if easy else (stage.optimal_steps, float(rng.choice(stage.error_rates)))
    task = generate_task(number, SPLIT, optimal_steps=steps)
    return task.instruction, asyncio.run(play(task, rng, rate, whole_way=stage.whole_way))


def pool_order(seed: int, pool: int) -> np.random.Generator:
    """Return the generator that orders the batches of a pool."""
    return np.random.default_rng([seed, 4 * pool])


def stages(again: int) -> list[CraftingStage]:
    """Return all stages, with the last repeated `again` times."""
    return [*STAGES, *(replace(STAGES[-1], name=chr(ord("I") + number)) for number in range(again))]


def held_out_loss(model: LlamaForCausalLM, source: DialogueSource[CraftingStage]) -> float:
    """Mean cross-entropy (nats) of the policy's tokens in held-out dialogues."""
    total, count = 0.0, 0
    with torch.no_grad():
        for ids, weights in Dialogues(source, HELD_OUT, HELD_OUT_SEED):
            losses, weight = token_losses(model, ids, weights)
            policy = weight == 1.0
            total, count = total + float(losses[policy].sum()), count + int(policy.sum())
    return total / count


def main() -> None:
    """Train the stages that are not finished yet and save the model in float16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of steps")
    parser.add_argument("--again", type=int, default=0, help="repetitions of the last stage")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer()
    source = DialogueSource(tokenizer, dialogue, pool_order)
    model = small_llama(len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    model = train_policy(model, stages(options.again), source, options.folder, seed=options.seed, scale=options.scale)
    print(f"loss on held-out dialogues: {held_out_loss(model, source):.4f}")
    model.half().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
