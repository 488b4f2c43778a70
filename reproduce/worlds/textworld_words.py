"""The tokenizer of TextWorld's small policy, and the renaming of things in the dialogues that it learns from.

The words of names are tokens of their own, so that names can be copied; other frequent phrases are one token each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import textworld
from amc_agents_textworld.world import RULES
from transformers import PreTrainedTokenizerFast

from reproduce.policy_training import Stage
from reproduce.word_tokenizer import word_tokenizer
from reproduce.worlds.corpus import Corpus, Dialogue

N_PHRASES, LEAST = 300, 5
MARKS = (RULES, "Thought:", "\nAction:", "-=", " =-", "*** The End ***")
CHARACTERS = ("\n", ".", ",", ":", "!", "?", "-", " ")
_PIECE = r"'[a-z]+| ?[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*|\n|."
_WORD = re.compile(_PIECE.removesuffix("|\\n|."))
_NOT_NAMED = re.compile(r"#[^#]*#|[(][^)]*[)]")
_NAME = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
UNCHANGED, COMMON = 0.2, 0.6
KEYS = {"key", "latchkey", "passkey", "keycard"}
"""A goal may say that a door is to be unlocked, without the key, so keys have to look like keys."""
DIRECTIONS = ("north", "east", "south", "west")
_NO_NAMES = re.compile("desc|what|looks|place|stable|force|weight|metal|ordinary|simple")
GRAMMAR = Path(str(textworld.__file__)).parent / "generator" / "data" / "text_grammars" / "house_obj.twg"
"""Where TextWorld keeps the names of its things."""
INSTRUCTIONS = GRAMMAR.with_name("house_instruction.twg")
"""Where it keeps the sentences of goals."""


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
    return {word for line in lines for word in _NAME.findall(_NOT_NAMED.sub(" ", line))}


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


@dataclass(frozen=True)
class RenamedCorpus:
    """The dialogues of a corpus, with other names and directions in most of them."""

    corpus: Corpus
    names: Sequence[str]
    """Words that can stand for each other."""

    def __call__(self, stage: Stage, seed: int, number: int) -> Dialogue:
        """Return the dialogue of a number."""
        first, rounds = self.corpus(stage, seed, number)
        rng = np.random.default_rng([seed, number, 1])
        if rng.random() < UNCHANGED:
            return first, rounds
        others = dict(zip(self.names, rng.permutation(self.names).tolist(), strict=True))
        turn, flip = int(rng.integers(4)), 1 - 2 * int(rng.integers(2))
        others |= {name: DIRECTIONS[(flip * place + turn) % 4] for place, name in enumerate(DIRECTIONS)}

        def renamed(text: str) -> str:
            return _NAME.sub(lambda match: others.get(match[0], match[0]), text)

        rules, _, goal = first.partition("\n")
        return f"{rules}\n{renamed(goal)}", [(renamed(message), renamed(answer)) for message, answer in rounds]


def changeable(dialogues: Sequence[Dialogue]) -> list[str]:
    """Return the words of names that have no other use: not in the talk of most goals, nor in a command's clause."""
    goals = [set(_NAME.findall(first.partition("\n")[2])) for first, _ in dialogues]
    counts = Counter(word for words in goals for word in words)
    common = {word for word, count in counts.items() if count > COMMON * len(goals)}
    return sorted(names_of(GRAMMAR) - KEYS - common - set(_NAME.findall(INSTRUCTIONS.read_text())))
