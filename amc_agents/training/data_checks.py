"""Split the data of a training by task, and check what it cannot teach and what would flatter the metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import numpy as np

from amc_agents.critics.render import Encoder
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.tokenizers import MOST_UNKNOWN, Segment, TemplateTokenizer, UnknownWords
from amc_agents.training.dataset import LoggedTrajectory, iter_records
from amc_agents.types import Trajectory

Item = TypeVar("Item")
SEARCH = "search"
"""Key of a dataset's settings: its trajectories were drawn by the weights of a search, not from the policy."""


def held_out_tasks(tasks: Iterable[str], validation_share: float, rng: np.random.Generator) -> set[str]:
    """Draw the ids of the held-out tasks, independently of the order of `tasks`.

    Raises:
        ConfigurationError: training or validation would have no task.
    """
    known = sorted(set(tasks))
    held_out = round(validation_share * len(known))
    if not 0 < held_out < len(known):
        raise ConfigurationError(
            f"a validation share of {validation_share} of {len(known)} tasks holds out {held_out}: training and "
            "validation need at least one task each; collect more tasks or change the share"
        )
    return {known[index] for index in rng.permutation(len(known))[:held_out]}


def split_by_task(
    items: Sequence[Item],
    validation_share: float,
    rng: np.random.Generator,
    *,
    task_of: Callable[[Item], str] = attrgetter("task.id"),
) -> tuple[list[Item], list[Item]]:
    """Split data into training and validation that share no task, since trajectories of a task are too similar.

    Args:
        items: trajectories, or objects that contain a trajectory.
        validation_share: share of the tasks held out.
        rng: draws the tasks.
        task_of: returns the task id of an item.

    Returns:
        (training, validation), each in the order of `items`.

    Raises:
        ConfigurationError: training or validation would have no task.
    """
    held_out = held_out_tasks(map(task_of, items), validation_share, rng)
    training = [item for item in items if task_of(item) not in held_out]
    validation = [item for item in items if task_of(item) in held_out]
    return training, validation


task_of_trajectory = attrgetter("trajectory.task.id")
"""`task_of` for items with a field `trajectory`."""


SAMPLE = 1000
"""Maximum number of trajectories to check; unknown words concern the whole data."""
WARNED = 0.01
"""Share of unknown words from which on a training warns."""
_REMEDY = "Choose a base model that knows these words, such as a language model's folder (--base)"


def check_words(data: Iterable[Trajectory] | str | Path, encoder: Encoder, *, anyway: bool = False) -> UnknownWords:
    """Refuse data whose words the tokenizer does not know.

    Args:
        data: trajectories, or a dataset's folder.
        encoder: renders and tokenizes them.
        anyway: do not refuse.

    Returns:
        The count of unknown words. A tokenizer without a token for unknown words, such as a byte-level one, knows all.

    Raises:
        ConfigurationError: too many words are unknown; the message gives the share and examples.
    """
    words = _count(data, encoder)
    if words.too_many and not anyway:
        raise ConfigurationError(
            f"the base model's tokenizer cannot read the training data: {words.share:.0%} of the words are unknown to "
            f"it (at most {MOST_UNKNOWN:.0%}), {_examples(data, encoder)}. {_REMEDY}"
        )
    return words


def warning_of(words: UnknownWords, data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> list[str]:
    """Return a warning if more than `WARNED` of the words are unknown."""
    if words.share <= WARNED:
        return []
    return [
        f"{words.share:.1%} of the words are unknown to the base model, {_examples(data, encoder)}: the critic cannot "
        f"tell them apart. {_REMEDY}."
    ]


def _count(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> UnknownWords:
    if not isinstance(encoder.tokenize, TemplateTokenizer):
        return UnknownWords(0, 0, "")
    return encoder.tokenize.unknown_words(_texts(data, encoder))


def _examples(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> str:
    assert isinstance(encoder.tokenize, TemplateTokenizer)
    examples = encoder.tokenize.unknown_examples(_texts(data, encoder), _EXAMPLES)
    return f"such as {', '.join(repr(word[:20]) for word in examples)}"


def _texts(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> Iterator[Segment]:
    trajectories = (record.trajectory for record in iter_records(data)) if isinstance(data, str | Path) else data
    return (text for trajectory in islice(trajectories, SAMPLE) for text in encoder.format.segments(trajectory))


_EXAMPLES = 5


NO_OUTCOME = (
    "the dataset has no trajectory with a known outcome: collect some, or add outcomes to imported trajectories "
    "(amc import --outcomes FILE --out DATA)"
)


def check_data(
    records: Iterable[LoggedTrajectory], *, validation_share: float, seed: int, anyway: bool = False
) -> list[str]:
    """Check the trajectories of a training.

    Args:
        records: the trajectories that the training uses, all with a known outcome; an empty `settings` field of all
            means that their origin is unknown.
        validation_share: share of the tasks that the training holds out.
        seed: seed of that choice.
        anyway: return a warning where a `ConfigurationError` about the outcomes would be raised.

    Returns:
        Warnings for the report, in the order of their importance.

    Raises:
        CheckpointError: there is no trajectory.
        ConfigurationError: all outcomes are equal, or training or validation would have no task.
    """
    data = _Summary.of(records)
    if not data.outcomes:
        raise CheckpointError(NO_OUTCOME)
    held_out = held_out_tasks(data.outcomes, validation_share, np.random.default_rng(seed))
    return [*data.about_search(), *data.about_outcomes(anyway), *data.about_overlap(held_out), *data.about_origin()]


@dataclass
class _Summary:
    outcomes: dict[str, set[float]] = field(default_factory=dict)
    """Task -> the first two different outcomes of its trajectories."""
    instructions: dict[str, set[bytes]] = field(default_factory=dict)
    """Task -> fingerprints of its instructions."""
    trajectories: int = 0
    imported: int = 0
    of_test_split: int = 0
    """Trajectories that `amc collect --split test` played."""
    of_known_origin: int = 0
    drawn_by_search: int = 0

    @classmethod
    def of(cls, records: Iterable[LoggedTrajectory]) -> _Summary:
        data = cls()
        for record in records:
            task, settings = record.trajectory.task, json.loads(record.settings)
            outcomes = data.outcomes.setdefault(task.id, set())
            if len(outcomes) < 2:
                outcomes.add(record.trajectory.return_)
            data.instructions.setdefault(task.id, set()).add(_fingerprint(task.instruction))
            data.trajectories += 1
            data.of_known_origin += bool(settings)
            data.drawn_by_search += SEARCH in settings
            data.imported += "imported" in settings
            data.of_test_split += settings.get("split") == "test"
        return data

    def about_search(self) -> list[str]:
        if not self.drawn_by_search:
            return []
        return [
            f"{self.drawn_by_search} trajectories were drawn by a search, with its weights: they succeed more "
            "often than the policy, so the critic's values would be too high. Collect with amc collect."
        ]

    def about_outcomes(self, anyway: bool) -> list[str]:
        different = set().union(*self.outcomes.values())
        if len(different) == 1:
            message = (
                f"all {self.trajectories} trajectories have the outcome {min(different):g}: a critic cannot learn from "
                "them what makes a run better. Add runs with other outcomes, or train anyway (--anyway)"
            )
            if not anyway:
                raise ConfigurationError(message)
            return [message]
        if not any(len(outcomes) > 1 for outcomes in self.outcomes.values()):
            size = f"{self.trajectories} runs of {len(self.outcomes)} tasks"
            return [
                f"No task has runs with different outcomes ({size}), so the critic may learn which tasks are easy "
                "instead of which runs go well. Collect or import several runs of the same task; amc import --task "
                "FIELD names the task."
            ]
        return []

    def about_overlap(self, held_out: set[str]) -> list[str]:
        trained = set().union(*(texts for task, texts in self.instructions.items() if task not in held_out))
        known = sum(not trained.isdisjoint(self.instructions[task]) for task in held_out)
        warnings = []
        if known:
            warnings.append(
                f"{known} of {len(held_out)} held-out tasks have the instruction of a training task under another id, "
                "so the metrics are too good unless the tasks differ in something else. Give equal tasks the same id "
                "(amc import without --task does)."
            )
        if self.of_test_split:
            warnings.append(
                f"{self.of_test_split} trajectories were collected from the test split: do not test the critic on the "
                "same tasks. Collect with --split train."
            )
        return warnings

    def about_origin(self) -> list[str]:
        if self.imported or not self.of_known_origin:
            return []
        return [
            "All trajectories were played in a benchmark. Critics trained on benchmarks alone have been found to be "
            "worthless in production (AUC 0.45 to 0.48, arXiv 2603.03800): before you use this one there, train it on "
            "your own logs (amc import)."
        ]


def _fingerprint(instruction: str) -> bytes:
    """Equal for instructions that differ only in case and spaces."""
    return hashlib.blake2b(" ".join(instruction.casefold().split()).encode(), digest_size=16).digest()
