"""Train the small TextWorld policy from scratch on an expert's play of generated games, on the CPU.

    PYTHONPATH=reproduce python reproduce/worlds/train_textworld.py FOLDER [--seed 0] [--scale 1.0] [--checkpoint FILE]

Needs the extra `train` and the package `integrations/textworld`. The training is that of `policy_training.py`, on
dialogues that are written to FOLDER/dialogues.jsonl first. The games are those of the training split from number
`FIRST` on; value models and settings use lower numbers. `--checkpoint` saves the model of a copy of
FOLDER/stages/A.pt, which is written every 100 steps, and trains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import textworld
import torch
from amc_agents_textworld import generate_tasks
from amc_agents_textworld.world import RULES
from corpus import Corpus, Dialogue, pool_order, read_corpus, write_corpus
from policy_training import DialogueSource, Stage, small_llama, train_policy
from textworld_expert import play
from transformers import PreTrainedTokenizerFast
from word_tokenizer import word_tokenizer

FIRST = 500_000
N_GAMES, PER_GAME = 240, 6
ERROR_RATES = (0.0, 0.05, 0.1, 0.2, 0.35)
STAGES = (Stage("A", 1000, 4e-3, ERROR_RATES),)
N_PHRASES, LEAST = 300, 5
MARKS = (RULES, "Thought:", "\nAction:", "-=", " =-", "*** The End ***")
CHARACTERS = ("\n", ".", ",", ":", "!", "?", "-", " ")
_PIECE = r"'[a-z]+| ?[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*|\n|."
_WORD = re.compile(_PIECE.removesuffix("|\\n|."))
_NOT_NAMED = re.compile(r"#[^#]*#|[(][^)]*[)]")
_NO_NAMES = re.compile("desc|what|looks|place|stable|force|weight|metal|ordinary|simple")
GRAMMAR = Path(str(textworld.__file__)).parent / "generator" / "data" / "text_grammars" / "house_obj.twg"
"""Where TextWorld keeps the names of its things."""


def make_tokenizer(dialogues: Sequence[Dialogue]) -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included: all names, frequent words, and frequent phrases without names."""
    texts = {text for first, rounds in dialogues for text in (first, *(part for pair in rounds for part in pair))}
    lines = Counter(tuple(re.findall(f"{_either(MARKS)}|{_PIECE}", text)) for text in sorted(texts))
    counts = Counter(piece for line in lines for piece in line if _WORD.fullmatch(piece))
    names = {f" {word}" for word in names_of(GRAMMAR)}
    words = names | {word for word, count in counts.items() if count >= LEAST}
    found = phrases(lines, {word for word in words - names if word.startswith(" ")})
    vocabulary = dict.fromkeys((*MARKS, *CHARACTERS, *found, *sorted(words)))
    return word_tokenizer(tuple(vocabulary), pattern=f"(?:{_either((*MARKS, *found))})(?![A-Za-z'-])|{_PIECE}")


def _either(texts: Sequence[str]) -> str:
    # Longest first, so that a phrase wins over a shorter one inside it.
    longest_first = sorted(texts, key=len, reverse=True)
    return "|".join(re.escape(text).replace("\\\n", "\n").replace("\\ ", " ") for text in longest_first)


def names_of(grammar: Path) -> set[str]:
    """Return the words of the names of things."""
    entries = (line.partition(":") for line in grammar.read_text().splitlines() if not line.startswith("#"))
    lines = [names for kind, _, names in entries if not _NO_NAMES.search(kind)]
    return {word for line in lines for word in re.findall(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*", _NOT_NAMED.sub(" ", line))}


def phrases(lines: Counter[tuple[str, ...]], words: set[str], n_phrases: int = N_PHRASES) -> list[str]:
    """Join the most frequent pair of words or phrases, again and again. A name is in none of them."""
    found: list[str] = []
    while len(found) < n_phrases:
        pairs: Counter[tuple[str, str]] = Counter()
        for line, count in lines.items():
            for a, b in pairwise(line):
                if a in words and b in words:
                    pairs[a, b] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        lines = Counter({_joined(line, best): count for line, count in lines.items()})
        found.append("".join(best))
        words = words | {found[-1]}
    return found


def _joined(line: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    if pair[0] not in line:
        return line
    pieces: list[str] = []
    for piece in line:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return tuple(pieces)


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
        source = DialogueSource(tokenizer, Corpus(dialogues), pool_order)
        model = train_policy(model, STAGES, source, options.folder, seed=options.seed, scale=options.scale)
    model.half().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
