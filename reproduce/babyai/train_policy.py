"""Train the small BabyAI policy from scratch on the noisy bot's dialogues, on the CPU.

    python reproduce/babyai/train_policy.py FOLDER [--seed 0] [--scale 1.0]

Needs the extra `train` and the package `integrations/minigrid`. The training is that of `policy_training.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from amc_agents_minigrid import ACTIONS, GO_TO_LOCAL, PICKUP_LOCAL, Expert, describe, generate_task, make_level

from reproduce.babyai.tokenizer import make_tokenizer
from reproduce.policy_training import DialogueSource, Stage, small_llama, train_policy

LEVELS = (GO_TO_LOCAL, PICKUP_LOCAL)
STAGES = (
    Stage("A", 900, 4e-3, (0.0, 0.05, 0.1)),
    Stage("B", 450, 3e-3, (0.02, 0.1, 0.2, 0.3, 0.4)),
    Stage("C", 500, 3e-3, (0.0, 0.02, 0.05, 0.1, 0.2)),
)


def dialogue(stage: Stage, seed: int, index: int) -> tuple[str, list[tuple[str, str]]]:
    """Play a dialogue: the first message, and rounds of the expert's message and the world's answer."""
    number = (ord(stage.name) - ord("A")) * 10_000_000 + seed * 1_000_000 + index
    rng = np.random.default_rng([number, 7])
    level_name, error_rate = LEVELS[index % len(LEVELS)], float(rng.choice(stage.error_rates))
    task = generate_task(level_name, number, "policy")
    level = make_level(level_name, task.payload.seed, task.payload.horizon)
    expert = Expert(level, error_rate, rng)
    rounds: list[tuple[str, str]] = []
    over = False
    while not over:
        turn = expert.turn()
        _, _, solved, truncated, _ = level.step(ACTIONS[turn.action])
        over = solved or truncated
        rounds.append((f"Thought: {turn.thought}\nAction: {turn.action}", describe(level)))
    return task.instruction, rounds


def pool_order(seed: int, pool: int) -> np.random.Generator:
    """Return the generator that orders the batches of a pool."""
    return np.random.default_rng([seed, pool])


def main() -> None:
    """Train the stages that are not finished yet and save the model in float16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer()
    model = small_llama(len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    source = DialogueSource(tokenizer, dialogue, pool_order)
    model = train_policy(model, STAGES, source, options.folder, seed=options.seed, scale=options.scale)
    model.half().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
