"""Long works that write files: each can be broken off, and goes on by the same call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amc_agents.bench.methods import best_of_n, react
from amc_agents.bench.runner import compare
from amc_agents.bench.tuning import Grid, tune
from amc_agents.critics.goal.embeddings import DiskCache
from amc_agents.operations.importing import Outcomes, import_logs
from amc_agents.training.collecting import collect_from
from amc_agents.training.dataset import read_records
from amc_agents.training.scoring import score
from amc_agents.types import Step, Task, Trajectory
from tests.bench.coins import comparison_of_coins
from tests.training.toy_trajectories import decided_by_the_first_answer, tiny_llama

TASKS = [Task(f"t/{number}", f"do {number}") for number in range(3)]


class Work(NamedTuple):
    """A work, and what is in its folder."""

    name: str
    run: Callable[[Path], object]
    """Does the work in a folder, or goes on with it."""
    result: Callable[[Path], Any]
    """What must be the same, however often the work was broken off."""
    most: int = 10**9
    """Number of its changes, evenly spread, that are tried: a training takes seconds."""

    def chosen(self, changes: int) -> list[int]:
        """The changes to break, of so many; the first and the last are among them."""
        if changes <= self.most:
            return list(range(changes))
        return [round(number * (changes - 1) / (self.most - 1)) for number in range(self.most)]


async def _played(task: Task, seed: int) -> list[Trajectory]:
    return [Trajectory(task, (Step("act", "seen", "why", reward),), done=True) for reward in (0.0, 1.0)]


def _collect(folder: Path) -> None:
    asyncio.run(collect_from(_played, TASKS, folder / "data", shard_tasks=1, n_concurrent=1))


def _bench(folder: Path) -> None:
    comparison = comparison_of_coins(2, [react(), best_of_n()], n_particles=2)
    asyncio.run(compare(comparison, folder / "bench", resume=(folder / "bench").exists(), n_concurrent=1))


def _tune(folder: Path) -> None:
    comparison = comparison_of_coins(1, [react()], n_particles=2)
    tune(comparison, folder / "tune", grid=Grid(temperatures=(0.0, 1.0), steps=((1,),), betas=(0.1,)))


def _import(folder: Path) -> None:
    source = folder.parent / "chats.jsonl"
    messages = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "done"}]
    source.write_text(
        "".join(json.dumps({"thread_id": f"t{n}", "messages": messages, "solved": n / 2}) + "\n" for n in range(3))
    )
    import_logs(source, folder / "data", outcomes=Outcomes(reward="solved"))


def _score(folder: Path) -> None:
    data = folder.parent / "data"
    if not data.exists():
        asyncio.run(collect_from(bits, TASKS, data))
    score(Lengths(), data, folder / "scores.parquet")


class Lengths:
    """A critic that counts steps."""

    predicts = "return"

    async def values(self, trajectories: Any) -> Any:
        return [float(len(trajectory.steps)) for trajectory in trajectories]


async def bits(task: Task, seed: int) -> list[Trajectory]:
    return [Trajectory(task, tuple(Step(bit, "seen") for bit in bits), done=True) for bits in ("01", "11")]


def _cache(folder: Path) -> None:
    DiskCache(folder / "cache.sqlite", "model").put({"question": b"answer"})


def base_model(folder: Path) -> Path:
    """A tiny model beside a work's folder."""
    pytest.importorskip("torch").set_num_threads(1)
    base = folder.parent / "base"
    if not base.exists():
        base.mkdir()
        tiny_llama(base)
    return base


def _train_value(folder: Path) -> None:
    base = base_model(folder)
    value: Any = import_module("amc_agents.training.value.train_value")
    settings = replace(value.EMBEDDED, epochs=1, batch_size=3, save_steps=2)
    if not (folder / "value").exists():
        value.train_value(base, decided_by_the_first_answer(6, 2), folder / "value", settings, resume=True)


def _train_verdict(folder: Path) -> None:
    base = base_model(folder)
    verdict: Any = import_module("amc_agents.training.verdict.train_verdict")
    judged = import_module("amc_agents.training.verdict.labelling").labelled(
        decided_by_the_first_answer(6, 2),
        lambda play: ["GOOD" if step.observation.startswith("Got") else "BAD" for step in play.steps],
    )
    if not (folder / "verdict").exists():
        verdict.train_verdict(base, judged, folder / "verdict", replace(verdict.EMBEDDED, epochs=1))


def _train_goal(folder: Path) -> None:
    pytest.importorskip("torch").set_num_threads(1)
    goal: Any = import_module("amc_agents.training.goal.train_goal")
    settings = goal.GoalTrainingSettings(iterations=2, updates=3, batch_size=8)
    goal.train_goal(decided_by_the_first_answer(6, 2), folder / "goal", "hashed:16", settings)


def _records(folder: Path) -> Any:
    return [(record.trajectory.task.id, record.group, record.trajectory.return_) for record in read_records(folder)]


def _lines(pattern: str) -> Callable[[Path], Any]:
    """The keys of the records, and their results without the time that they took."""

    def read(folder: Path) -> Any:
        rows = [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]
        return sorted(json.dumps(_timeless(row), sort_keys=True) for row in rows)

    return read


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(each) for name, each in value.items() if name != "seconds"}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def _files(name: str) -> Callable[[Path], Any]:
    """What is beside a result, and the bytes of its files, without the path of the base model, the card, which contains
    times, and what a kill left unfinished.
    """

    def read(folder: Path) -> Any:
        out, own = folder / name, str(folder.parent).encode()
        paths = [path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != ".part"]
        kept = {str(path.relative_to(out)): path.read_bytes().replace(own, b"") for path in paths}
        kept.pop("README.md", None)
        return sorted(path.name for path in folder.iterdir()), kept

    return read


def _scores(folder: Path) -> Any:
    parquet: Any = import_module("pyarrow.parquet")
    return parquet.read_table(folder / "scores.parquet").to_pylist()


WORKS = (
    Work("collect", _collect, lambda folder: _records(folder / "data")),
    Work("bench", _bench, _lines("bench/records*.jsonl")),
    Work("tune", _tune, _lines("tune/records*.jsonl")),
    Work("import", _import, lambda folder: _records(folder / "data")),
    Work("score", _score, _scores),
    Work("train value", _train_value, _files("value"), most=5),
    Work("train verdict", _train_verdict, _files("verdict"), most=5),
    Work("train goal", _train_goal, _files("goal")),
    Work("cache of a judge or of embeddings", _cache,
         lambda folder: DiskCache(folder / "cache.sqlite", "model").get(["question"])),
)  # fmt: skip
