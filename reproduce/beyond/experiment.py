"""Play searches beyond the papers on training tasks (screen) or held-out tasks (final).

    python reproduce/beyond/experiment.py screen crafting --tasks 24 [SEARCH ...]

Every run is stored when it ends, in runs/beyond, and the command resumes; finished shards are packed into
docs/results/beyond/raw.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.engine import Execute, run_job
from amc_agents.bench.records import TOP, Cost, Particles, RunResult, Scores, read_run_results
from amc_agents.bench.results_folder import ResultsFolder, WorkItem
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.envs.registry import world
from amc_agents.smc import normalised
from amc_agents.types import Task
from reproduce.beyond.candidates import CANDIDATES
from reproduce.beyond.filtering import filtered, independent
from reproduce.beyond.found import Found
from reproduce.beyond.play import Policy, State, Table
from reproduce.beyond.search_settings import CRITICS, GROUPS, HIDDEN, WORLDS, Search, tasks_of
from reproduce.study.packed import pack

RUNS = Path("runs/beyond")
RAW = Path("docs/results/beyond/raw")


@dataclass(frozen=True)
class BeyondJob:
    """Searches on the first tasks of a group (`amc_agents.bench.engine.Job`)."""

    world: str
    group: str
    n_tasks: int
    searches: tuple[Search, ...]
    seed: int = 0
    command: str = "experiment.py"

    def prepare(self) -> BeyondWork:
        """Load the policy and the critic."""
        critic = parse_critic(CRITICS[self.world])
        assert isinstance(critic, EmbeddedCritic)
        return BeyondWork(self, Policy(str(world(self.world).model)), critic)


@dataclass(frozen=True)
class BeyondWork:
    """The runs of a job (`amc_agents.bench.engine.Work`)."""

    job: BeyondJob
    policy: Policy
    critic: EmbeddedCritic

    @property
    def settings(self) -> dict[str, Any]:
        """What all results share."""
        split, first = GROUPS[self.job.group]
        return {"world": self.job.world, "split": split, "first": first, "critic": CRITICS[self.job.world]}

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """The settings of each search."""
        return {search.name: search.plain() for search in self.job.searches}

    def items(self) -> list[WorkItem]:
        """Return every run, task by task."""
        return [WorkItem(search.name, task, self.job.seed) for task in self._tasks for search in self.job.searches]

    @property
    def _tasks(self) -> dict[str, Task]:
        return {task.id: task for task in tasks_of(self.job.world, self.job.group, self.job.n_tasks)}

    def folder(self, out: str | Path, *, resume: bool, worker: str = "") -> ResultsFolder:
        """Return the results folder."""
        return ResultsFolder(out, self.settings, self.methods, resume=resume, worker=worker)

    def parse(self, values: Mapping[str, Any]) -> RunResult:
        """Read a stored result."""
        return RunResult.from_json(values)

    @contextmanager
    def executor(self, out: str | Path, worker: str) -> Iterator[Execute]:
        """Return the function that plays a run."""
        of_name, tasks = {search.name: search for search in self.job.searches}, self._tasks

        async def execute(item: WorkItem) -> RunResult:
            return await self._play(of_name[item.name], tasks[item.task], item)

        yield execute

    async def _play(self, search: Search, task: Task, item: WorkItem) -> RunResult:
        seed = [item.seed, zlib.crc32(item.task.encode()), zlib.crc32(item.name.encode())]
        table = Table(
            task, world(self.job.world).make, [self.policy] * len(search.temperatures), search.temperatures,
            self.critic, np.random.default_rng([*seed, 0]), hide_rewards=self.job.world in HIDDEN,
        )  # fmt: skip
        started = time.perf_counter()
        found = await searched(table, search, np.random.default_rng([*seed, 1]))
        seconds = time.perf_counter() - started
        return result_of(item, table, found, seconds)


async def searched(table: Table, search: Search, rng: np.random.Generator) -> Found[State]:
    """Run a search on a task."""
    if search.kind == "independent":
        return await independent(table, search.sizes[0], search.beta)
    return await filtered(table, search.sizes[0], search.points, search.beta, rng)


def result_of(item: WorkItem, table: Table, found: Found[State], seconds: float) -> RunResult:
    """Score the final states, with the true rewards."""
    returns = np.array([state.trajectory.return_ for state in found.states])
    first: dict[Any, int] = {}
    same_as = tuple(first.setdefault(state.dialogue, index) for index, state in enumerate(found.states))
    distinct = returns[sorted(set(same_as))]
    spent, oracle = table.spent, float(returns.max())
    scores = Scores(
        oracle=oracle,
        success=float(oracle >= 1.0),
        deployable=float(returns[int(np.argmax(found.values))]),
        top5=float(np.sort(returns)[-TOP:].mean()),
        mean=float(returns.mean()),
        top5_distinct=float(np.sort(distinct)[-TOP:].mean()),
        mean_distinct=float(distinct.mean()),
        weighted_mean=float(normalised(np.array(found.log_weights)) @ returns),
        particles=len(returns),
        distinct=len(distinct),
    )
    cost = Cost(
        policy_calls=spent.policy_calls,
        policy_input_tokens=0,
        policy_output_tokens=spent.policy_tokens,
        policy_cached_tokens=0,
        critic_calls=spent.critic_calls,
        critic_tokens=spent.critic_tokens,
        critic_cached_tokens=0,
        calls_without_usage=0,
        seconds=seconds,
    )
    values = tuple(round(float(value), 6) for value in found.values)
    return RunResult(*item.key, scores, cost, (), Particles(tuple(returns.tolist()), values, same_as))


def play(job: BeyondJob, n_workers: int = 1) -> list[RunResult]:
    """Play the missing runs of a job, and pack them."""
    shard = f"{job.world}-{job.group}"
    records = run_job(job, RUNS / shard, resume=True, n_workers=n_workers, n_concurrent=1)
    packed_shard(job, records)
    return records


def packed_shard(job: BeyondJob, records: Sequence[RunResult]) -> None:
    """Pack a shard's runs, also unfinished ones."""
    work = job.prepare()
    for name, settings in work.methods.items():
        of_name = [record for record in records if record.method == name]
        if of_name:
            shared = {"settings": work.settings, "methods": {name: settings}}
            pack(f"{job.world}-{job.group}_{name}", shared, of_name, RAW)


def main() -> None:
    """Play the named searches, or all candidates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=sorted(GROUPS))
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("searches", nargs="*", metavar="SEARCH")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pack", action="store_true", help="pack the runs that exist, and play none")
    options = parser.parse_intermixed_args()
    known: dict[str, Search] = {search.name: search for search in CANDIDATES[options.world] if search.playable}
    unknown = sorted(set(options.searches) - set(known))
    if unknown:
        parser.error(f"unknown search {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen: Sequence[Search] = [known[name] for name in options.searches or known]
    job = BeyondJob(options.world, options.group, options.tasks, tuple(chosen))
    if options.pack:
        packed_shard(job, read_run_results(RUNS / f"{job.world}-{job.group}"))
    else:
        play(job, options.workers)


if __name__ == "__main__":
    main()
