"""Train the small TextWorld policy from scratch on an expert's play of generated games, on the CPU.

    python reproduce/worlds/train_textworld.py FOLDER [--seed 0] [--scale 1.0] [--checkpoint FILE]

Needs the extra `train` and the package `integrations/textworld`. The training is that of `policy_training.py`, on
dialogues that are written to FOLDER/dialogues.jsonl first. In most of them, names and directions are exchanged at
random, each time in another way: with the names as they are, the model learnt the games by heart. The games are those
of the training split from number `FIRST` on; value models and settings use lower numbers. `--checkpoint` saves the
model of a copy of FOLDER/stages/A.pt, which is written every 100 steps, and trains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from amc_agents_textworld import generate_tasks

from reproduce.policy_training import DialogueSource, Stage, small_llama, train_policy
from reproduce.worlds.corpus import Corpus, Dialogue, pool_order, read_corpus, write_corpus
from reproduce.worlds.textworld_expert import play
from reproduce.worlds.textworld_words import RenamedCorpus, changeable, make_tokenizer

FIRST = 500_000
N_GAMES, PER_GAME = 240, 6
ERROR_RATES = (0.0, 0.05, 0.1, 0.2, 0.35)
STAGES = (Stage("A", 1000, 4e-3, ERROR_RATES),)


def dialogues_of(number: int) -> Iterator[Dialogue]:
    """Play a game several times, with an error rate for each time."""
    task = next(generate_tasks(1, "train", FIRST + number))
    for repetition in range(PER_GAME):
        rng = np.random.default_rng([number, repetition])
        yield task.instruction, asyncio.run(play(task, rng, float(rng.choice(ERROR_RATES))))


def main() -> None:
    """Write the dialogues, train the stages that are not finished yet and save the model in float16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of steps")
    parser.add_argument("--checkpoint", type=Path, help="a copy of an unfinished stage, to be saved instead")
    options = parser.parse_args()
    path = options.folder / "dialogues.jsonl"
    write_corpus(path, N_GAMES, dialogues_of)
    dialogues = read_corpus(path)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer(dialogues)
    model = small_llama(len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    if options.checkpoint:
        model.load_state_dict(torch.load(options.checkpoint, weights_only=True)["model"])
    else:
        source = DialogueSource(tokenizer, RenamedCorpus(Corpus(dialogues), changeable(dialogues)), pool_order)
        model = train_policy(model, STAGES, source, options.folder, seed=options.seed, scale=options.scale)
    model.half().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
