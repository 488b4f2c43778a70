"""A value model for worlds that others wrote: ridge regression on words. It trains and judges within seconds.

    python reproduce/worlds/word_value.py DATA OUT.json            # of `amc collect`; a fifth of the tasks is held out
    amc bench MODULE --critic 'word_value:WordValue?path=OUT.json' ...

It predicts the return to come from the words seen so far, those of the newest two turns, the score and the step.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amc_agents.files import replace_file
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.ranking import ranking
from amc_agents.types import FloatArray, Step, Trajectory

HELD_OUT = 5
"""One task of so many is held out."""
LEAST = 20
"""Fewest states in which a feature must occur."""
PENALTY = 30.0
NEWEST = 2
_WORD = re.compile(r"[a-z]+")


def states(trajectory: Trajectory) -> Iterator[Counter[str]]:
    """Yield the features of each state, from before the first step to after the last."""
    seen: set[str] = set()
    earned = 0.0
    for number in range(len(trajectory.steps) + 1):
        newest = trajectory.steps[max(0, number - NEWEST) : number]
        if newest:
            seen |= set(_words(newest[-1]))
            earned += newest[-1].reward
        yield _features(seen, newest, round(earned, 2), number)


def _features(seen: set[str], newest: Sequence[Step], earned: float, number: int) -> Counter[str]:
    found = Counter({f"seen {word}": 1.0 for word in seen})
    for age, step in enumerate(reversed(newest)):
        found.update(f"{age} {word}" for word in set(_words(step)))
    # A Counter may hold floats, but its type knows integers only.
    found[f"score {earned}"] = 1.0  # type: ignore[assignment]
    found[f"score {earned} x steps"] = number / 10  # type: ignore[assignment]
    found[f"steps {number // 2}"] = 1.0  # type: ignore[assignment]
    return found


def _words(step: Step) -> list[str]:
    return _WORD.findall(f"{step.action} > {step.observation}".lower())


@dataclass(frozen=True)
class Weights:
    """A fitted ridge regression."""

    intercept: float
    of: dict[str, float]

    def value(self, features: Counter[str]) -> float:
        """Predict the return to come."""
        return self.intercept + sum(self.of.get(name, 0.0) * count for name, count in features.items())


class WordValue:
    """The critic of a file that `main` wrote.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._weights = Weights(**json.loads(Path(path).read_text(encoding="utf-8"))["weights"])

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predicted future returns."""
        return np.array([self._weights.value(list(states(trajectory))[-1]) for trajectory in trajectories])


def fit(trajectories: Sequence[Trajectory]) -> Weights:
    """Fit the return to come of every state but the last."""
    rows = [features for trajectory in trajectories for features in list(states(trajectory))[:-1]]
    targets = np.concatenate([_to_come(trajectory)[:-1] for trajectory in trajectories])
    counts = Counter(name for row in rows for name in row)
    names = sorted(name for name, count in counts.items() if count >= LEAST)
    column = {name: index for index, name in enumerate(names)}
    table = np.zeros((len(rows), len(names)))
    for index, row in enumerate(rows):
        for name, count in row.items():
            if name in column:
                table[index, column[name]] = count
    mean = table.mean(axis=0)
    gram = table.T @ table - len(rows) * np.outer(mean, mean)
    weights = np.linalg.solve(
        gram + PENALTY * np.eye(len(names)), table.T @ targets - len(rows) * mean * targets.mean()
    )
    intercept = float(targets.mean() - mean @ weights)
    return Weights(intercept, {name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)})


def _to_come(trajectory: Trajectory) -> FloatArray:
    """Return `[T + 1]` returns to come."""
    earned = np.cumsum([0.0, *(step.reward for step in trajectory.steps)])
    return np.asarray(earned[-1] - earned)


def train(played: Sequence[Trajectory], out: str) -> None:
    """Fit on four fifths of the tasks, and store the weights with how they rank siblings of the others."""
    kept = [zlib.crc32(trajectory.task.id.encode()) % HELD_OUT > 0 for trajectory in played]
    weights = fit([trajectory for trajectory, keep in zip(played, kept, strict=True) if keep])
    held_out = [trajectory for trajectory, keep in zip(played, kept, strict=True) if not keep]
    scored = [(each, np.array([weights.value(state) for state in states(each)])) for each in held_out]
    report = ranking(scored, predicts="future")
    print("\n".join(report.sentences))
    facts = {"trajectories": len(played), "held_out": len(held_out), "ranking": report.as_plain()}
    text = json.dumps(facts | {"weights": {"intercept": weights.intercept, "of": weights.of}}, indent=0)
    replace_file(Path(out), text)


if __name__ == "__main__":
    train(read_trajectories(sys.argv[1]), sys.argv[2])
