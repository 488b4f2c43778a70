"""Train a small policy for four task families of ScienceWorld, from scratch, on the CPU.

    python reproduce/worlds/train_scienceworld.py DATA FOLDER [--steps STEPS]

It learns from training tasks only: the gold paths of gold_paths.json, and the successful trajectories of DATA, which
`amc collect` made with the scripted policy. The model sees refused actions and is not trained to make them. FOLDER gets
the files of `EmbeddedChatModel`. An interrupted training resumes.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from amc_agents_scienceworld import HORIZON, task_of, variations
from amc_agents_scienceworld.critic import REFUSALS
from transformers import PreTrainedTokenizerFast

from amc_agents.training.dataset import read_trajectories
from amc_agents.types import Step, Task, Trajectory
from reproduce.policy_training import DialogueSource, Stage, small_llama, train_policy
from reproduce.word_tokenizer import word_tokenizer
from reproduce.worlds.scienceworld_agent import FAMILIES, MistakenEpisode, recorded_paths

TEACHING = 80
"""The first training variations of each family, which the policy may learn from; others are for choosing settings."""
STEPS = 350
"""Few on purpose: after 700 steps the policy succeeds in more than 90% of its runs, which leaves nothing to search."""
LEAST = 2
"""Fewest occurrences of a word that gets a token."""
SOLVED = 1.0 - 1e-6
PIECE = r" ?[A-Za-z]+|\d|\n\t?|[^A-Za-z\d\s]|\s"


def rounds(play: Trajectory) -> tuple[str, list[tuple[str, str]]]:
    """Return the first message, and the policy's messages with the world's answers.

    A refused action is part of the answer before it, so that it counts as little as an observation.
    """
    texts: list[list[str]] = [["", play.task.instruction]]
    for step in play.steps:
        if step.observation.startswith(REFUSALS):
            texts[-1][1] += f"<|assistant|>Action: {step.action}<|end|><|user|>{step.observation}"
        else:
            texts.append([f"Action: {step.action}", step.observation])
    return texts[0][1], [(message, answer) for message, answer in texts[1:]]


def gold_plays() -> list[Trajectory]:
    """Play the recorded gold paths of training tasks."""
    names = [
        f"scienceworld/{family}/{number}"
        for family in FAMILIES
        for number in variations(family)["train"][:TEACHING]
        if str(number) in recorded_paths()[family]
    ]
    return [asyncio.run(_gold_play(task_of(name))) for name in names]


async def _gold_play(task: Task) -> Trajectory:
    world, steps, done = MistakenEpisode(), list[Step](), False
    await world.reset(task)
    # Not every gold path ends its episode.
    while not done and len(steps) < HORIZON:
        action = world.expert_action()
        answer = await world.step(action)
        steps.append(Step(action, answer.observation, reward=answer.reward))
        done = answer.done
    await world.close()
    goal = task.instruction[task.instruction.index("Goal:") :]
    return Trajectory(Task(task.id, goal), tuple(steps), done=True)


def make_tokenizer(plays: Sequence[Trajectory]) -> PreTrainedTokenizerFast:
    """Build a tokenizer of the words of the plays."""
    texts = (text for play in plays for text in (play.task.instruction, *map(_text, play.steps)))
    counts = Counter(piece for text in texts for piece in re.findall(PIECE, text))
    return word_tokenizer([word for word, count in sorted(counts.items()) if count >= LEAST], pattern=PIECE)


def _text(step: Step) -> str:
    return f"Action: {step.action}\n{step.observation}"


def main(data: str, folder: Path, steps: int, seed: int) -> None:
    """Train the policy and save it in float16."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    plays = [*gold_plays(), *(play for play in read_trajectories(data) if play.return_ >= SOLVED)]
    print(f"{len(plays)} plays of {len({play.task.id for play in plays})} tasks")

    def draw(stage: Stage, seed: int, number: int) -> tuple[str, list[tuple[str, str]]]:
        return rounds(plays[int(np.random.default_rng([seed, number]).integers(len(plays)))])

    tokenizer = make_tokenizer(plays)
    source = DialogueSource(tokenizer, draw, lambda seed, pool: np.random.default_rng([seed, pool]))
    model = small_llama(len(tokenizer))
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    model = train_policy(model, [Stage("A", steps, 4e-3, ())], source, folder, seed=seed, scale=1.0)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
