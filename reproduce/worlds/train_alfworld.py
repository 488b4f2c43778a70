"""Train the small ALFWorld policy from scratch on a searching expert's play of generated rooms, on the CPU.

    python reproduce/worlds/train_alfworld.py FOLDER [--seed 0] [--scale 1.0] [--checkpoint FILE]

Needs the extra `train` and the package `integrations/alfworld`. The training is that of `policy_training.py`, on
dialogues that are written to FOLDER/dialogues.jsonl first. The rooms are those of the training split from number
`FIRST` on; value models and settings use lower numbers. `--checkpoint` saves the model of a copy of
FOLDER/stages/A.pt, which is written every 100 steps, and trains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from alfworld.gen import constants
from alfworld.gen.goal_library import gdict
from amc_agents_alfworld import generate_tasks
from transformers import PreTrainedTokenizerFast

from reproduce.policy_training import DialogueSource, Stage, small_llama, train_policy
from reproduce.word_tokenizer import word_tokenizer
from reproduce.worlds.alfworld_expert import play
from reproduce.worlds.corpus import Corpus, Dialogue, pool_order, read_corpus, write_corpus

FIRST = 500_000
N_ROOMS, PER_ROOM = 240, 6
ERROR_RATES = (0.0, 0.05, 0.1, 0.2, 0.35)
STAGES = (Stage("A", 1000, 4e-3, ERROR_RATES),)
PHRASES = (
    "You are in the middle of a room. Looking quickly around you, you see a", "\n\nYour task is to:", ", a", ", and a",
    "You arrive at", ". On the", ", you see a", ", you see nothing.", ". The", " is closed.", " is open. In it",
    "You open the", "You close the", "You pick up the", "You move the", "You clean the", "You heat the",
    "You cool the", "You turn on the", "You turn off the", " using the", " from the", " to the", "Nothing happens.",
    "You are carrying: a", "You are not carrying anything.", "You are facing the", ". Next to it",
    "You are in the middle of a room. Looking quickly around you",
    "On the", "The", "There's nothing special about", "This is a", "Thought:", "\nAction:", " find", " take", " put",
    " back", " in", " use", " clean", " heat", " cool", " hot", " go to", " open", " close", " move", " from", " to",
    " with", " examine", " look", " inventory", " a", " and", " two", " the", " it", " some", "\n", ".", ",", ":", " ",
)  # fmt: skip
"""Frequent texts of the engine and of the expert. A command alone begins with its verb, and a thought as well."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included."""
    kinds = {kind.lower() for kind in (*constants.OBJECTS_SET, *constants.VAL_RECEPTACLE_OBJECTS)}
    kinds |= {kind.lower() for contents in constants.VAL_RECEPTACLE_OBJECTS.values() for kind in contents}
    goals = [word for goal in gdict.values() for text in goal["templates"] for word in text.split() if "{" not in word]
    words = {f" {word}" for word in (*kinds, *goals, *map(str, range(1, 15)))}
    return word_tokenizer((*PHRASES, *sorted(words - set(PHRASES))))


def dialogues_of(number: int) -> Iterator[Dialogue]:
    """Play a room several times, with an error rate for each time."""
    task = next(generate_tasks(1, "train", FIRST + number))
    for repetition in range(PER_ROOM):
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
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer()
    model = small_llama(len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    if options.checkpoint:
        model.load_state_dict(torch.load(options.checkpoint, weights_only=True)["model"])
    else:
        path = options.folder / "dialogues.jsonl"
        write_corpus(path, N_ROOMS, dialogues_of)
        source = DialogueSource(tokenizer, Corpus(read_corpus(path)), pool_order)
        model = train_policy(model, STAGES, source, options.folder, seed=options.seed, scale=options.scale)
    model.half().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
