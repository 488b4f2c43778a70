"""A job whose items only say that they were executed, for tests of queues and executors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from amc_agents.bench.methods import Tuned, best_of_n, react
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.results_folder import ResultsFolder, WorkItem, worker_file
from amc_agents.bench.run_files import Failures


@dataclass(frozen=True)
class Line:
    """A result."""

    name: str
    task: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.name, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Tally:
    """A job and its work: `n` items, each of which is written to the file `log` when it is executed."""

    log: str
    n: int = 6
    failing: tuple[str, ...] = ()
    fatal: str = ""
    """Task whose execution ends the process, unless the file `log`.mercy exists."""
    command: str = "amc bench"

    def prepare(self):
        return self

    def items(self):
        return [WorkItem("method", str(number), 0) for number in range(self.n)]

    def folder(self, out, *, resume, worker=""):
        return ResultsFolder(out, {"n": "any"}, {}, resume=resume, worker=worker)

    def parse(self, values):
        return Line(**values)

    @contextmanager
    def executor(self, out, worker) -> Iterator[Any]:
        with worker_file(out, "failures", worker) as file:
            failures = Failures(file)

            async def execute(item):
                with Path(self.log).open("a") as log:
                    log.write(f"{item.task}\n")
                if item.task == self.fatal and not Path(f"{self.log}.mercy").exists():
                    os._exit(9)
                if item.task in self.failing:
                    failures.add(item, ValueError(f"task {item.task} is broken"))
                    return None
                return Line(*item.key)

            yield execute

    def executed(self):
        return Path(self.log).read_text().split() if Path(self.log).exists() else []


def reproducible(records):
    """Return run results without what depends on the machine: wall time, and what its caches held."""
    physical = {"seconds": 0.0, "policy_cached_tokens": 0, "critic_cached_tokens": 0, "world_model_cached_tokens": 0}
    return [replace(record, cost=replace(record.cost, **physical)) for record in records]


def two_methods():
    """Return a small comparison. No value model: the last digits of its values depend on what shares a batch."""
    methods = react(Tuned()), best_of_n(Tuned())
    return ComparisonPlan(methods, n_tasks=2, band=(2, 3), n_particles=2, plain=True, critic="uniform")
