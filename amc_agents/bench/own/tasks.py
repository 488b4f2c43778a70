"""Tasks in a JSON Lines file, and their split into training and test tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import Task

Split = Literal["train", "test", "all"]
EXAMPLE = '{"id": "1", "instruction": "What is 2 + 2?", "answer": "4"}'
_OWN_FIELDS = ("id", "instruction", "split")


class SplitTask(NamedTuple):
    """A task and its split."""

    task: Task
    """Its payload is the dictionary of the line's other fields."""
    split: str
    """"train" or "test"."""


def read_tasks(path: str | Path, split: Split = "all", *, first: int = 0) -> list[Task]:
    """Read the tasks of a split, in the order of the file.

    Each line is an object with an `id`, an `instruction` and any other fields, which become the task's payload. The
    field `split` is "train" or "test"; without it, the id's hash decides, so that a task stays in its split when
    others are added.

    Args:
        path: the file; empty lines are skipped.
        split: "train", "test" or "all".
        first: number of the first task of the split.

    Raises:
        ConfigurationError: the file cannot be read, a line is not a task or repeats an id (the message names the
            line), or the split has no task.
    """
    if split not in get_args(Split):
        raise ConfigurationError(f'--split must be "train", "test" or "all", got {quoted(split)}')
    every = list(_tasks_of(Path(path)))
    chosen = [task for task, own in every if split in ("all", own)][first:]
    if not chosen:
        beyond = f" from number {first} on" if first else ""
        raise ConfigurationError(
            f'{path} has no task of the split "{split}"{beyond}, of {len(every)} tasks: add tasks, name their split '
            '("split": "train" or "test"), or use --split all'
        )
    return chosen


def tasks_hash(tasks: Sequence[Task]) -> str:
    """Fingerprint tasks with their payloads."""
    plain = [[task.id, task.instruction, task.payload] for task in tasks]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _tasks_of(path: Path) -> Iterator[SplitTask]:
    lines: dict[str, int] = {}
    for number, values in _objects(path):
        where = f"{path} line {number}"
        task = SplitTask(_task(values, where), _split(values, where))
        if task.task.id in lines:
            raise ConfigurationError(
                f"{where} repeats the id {quoted(task.task.id)} of line {lines[task.task.id]}: ids must differ"
            )
        lines[task.task.id] = number
        yield task
    if not lines:
        raise ConfigurationError(f"{path} holds no tasks: expected lines such as {EXAMPLE}")


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"--tasks {path} cannot be read ({reason}): expected a JSON Lines file") from error
    # Not splitlines(): JSON text may contain other line separators.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"{path} line {number} is not JSON ({excerpt(str(error), 100)}): expected an object such as {EXAMPLE}"
            ) from error
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"{path} line {number} is a JSON {type(values).__name__}: expected an object such as {EXAMPLE}"
            )
        yield number, values


def _task(values: Mapping[str, Any], where: str) -> Task:
    for name in ("id", "instruction"):
        if not isinstance(values.get(name), str) or not values[name]:
            came = f"got {excerpt(repr(values[name]), 60)}" if name in values else "it is missing"
            raise ConfigurationError(
                f"{where}: {quoted(name)} must be a text that is not empty, {came}; such as {EXAMPLE}"
            )
    payload = {name: value for name, value in values.items() if name not in _OWN_FIELDS}
    return Task(values["id"], values["instruction"], payload)


def _split(values: Mapping[str, Any], where: str) -> str:
    split = values.get("split")
    if split is None:
        return "test" if hashlib.sha256(values["id"].encode()).digest()[0] % 2 else "train"
    if split not in ("train", "test"):
        raise ConfigurationError(f'{where}: \'split\' must be "train" or "test", got {excerpt(repr(split), 60)}')
    return str(split)
