"""The dialogues of an expert: written to a file, which an interrupted command completes when it is called again.

A line is a dialogue: [first message, [[the expert's message, the world's answer], ...]].
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amc_agents.files import replace_file
from reproduce.policy_training import Stage

Dialogue = tuple[str, Sequence[tuple[str, str]]]


def write_corpus(path: Path, n_tasks: int, play: Callable[[int], Iterable[Dialogue]]) -> None:
    """Write the dialogues of the tasks that the file lacks; `play` makes those of a task, given its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    whole = [(json.loads(line)[0], line) for line in lines if line.endswith("\n")]
    # The last task may lack dialogues, so it is played again.
    first = max((number for number, _ in whole), default=0)
    replace_file(path, "".join(line for number, line in whole if number < first))
    with path.open("a", encoding="utf-8") as file:
        for number in range(first, n_tasks):
            file.write("".join(json.dumps([number, *dialogue]) + "\n" for dialogue in play(number)))
            file.flush()


def read_corpus(path: Path) -> list[Dialogue]:
    """Read the dialogues."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(first, [(message, answer) for message, answer in rounds]) for _, first, rounds in rows]


@dataclass(frozen=True)
class Corpus:
    """The dialogues in a random order that differs in every pass."""

    dialogues: list[Dialogue]

    def __call__(self, stage: Stage, seed: int, number: int) -> Dialogue:
        """Return the dialogue of a number."""
        passed, place = divmod(number, len(self.dialogues))
        order = np.random.default_rng([seed, passed]).permutation(len(self.dialogues))
        return self.dialogues[int(order[place])]


def pool_order(seed: int, pool: int) -> np.random.Generator:
    """Return the generator that orders the batches of a pool."""
    return np.random.default_rng([seed, pool])
