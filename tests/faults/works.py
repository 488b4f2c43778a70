"""Long works that write files: each can be broken off, and goes on by the same call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.bench.exploration.agents import explorers
from amc_agents.bench.exploration.running import Exploration, explore
from amc_agents.bench.methods import best_of_n, react
from amc_agents.bench.runner import compare
from amc_agents.bench.tuning import Grid, tune
from amc_agents.critics.disk_cache import DiskCache
from amc_agents.importing import Outcomes, import_logs
from amc_agents.training.collecting import collect_from
from amc_agents.training.dataset import read_records
from amc_agents.training.scoring import score
from amc_agents.types import Step, Task, Trajectory
from tests.bench.coins import comparison_of_coins

TASKS = [Task(f"t/{number}", f"do {number}") for number in range(3)]


class Work(NamedTuple):
    """A work, and what is in its folder."""

    name: str
    run: Callable[[Path], object]
    """Does the work in a folder, or goes on with it."""
    result: Callable[[Path], Any]
    """What must be the same, however often the work was broken off."""


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


def _explore(folder: Path) -> None:
    planned = Exploration("bandit", explorers(["classic-psrl"], []), 2, 2)
    explore(planned, folder / "explore", resume=(folder / "explore").exists(), n_concurrent=1)


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
        asyncio.run(collect_from(_bits, TASKS, data))
    score(Lengths(), data, folder / "scores.parquet")


class Lengths:
    """A critic that counts steps."""

    predicts = "return"

    async def values(self, trajectories: Any) -> Any:
        return [float(len(trajectory.steps)) for trajectory in trajectories]


async def _bits(task: Task, seed: int) -> list[Trajectory]:
    return [Trajectory(task, tuple(Step(bit, "seen") for bit in bits), done=True) for bits in ("01", "11")]


def _cache(folder: Path) -> None:
    DiskCache(folder / "cache.sqlite", "model").put({"question": b"answer"})


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


def _scores(folder: Path) -> Any:
    parquet: Any = import_module("pyarrow.parquet")
    return parquet.read_table(folder / "scores.parquet").to_pylist()


WORKS = (
    Work("collect", _collect, lambda folder: _records(folder / "data")),
    Work("bench", _bench, _lines("bench/records*.jsonl")),
    Work("tune", _tune, _lines("tune/records*.jsonl")),
    Work("explore", _explore, _lines("explore/records*.jsonl")),
    Work("import", _import, lambda folder: _records(folder / "data")),
    Work("score", _score, _scores),
    Work("cache of a judge or of embeddings", _cache,
         lambda folder: DiskCache(folder / "cache.sqlite", "model").get(["question"])),
)  # fmt: skip
