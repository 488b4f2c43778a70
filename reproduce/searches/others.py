"""The four searches that were dropped, in all crafting worlds: tuned like AMC, and played on the same test tasks.

    export PYTHONPATH=reproduce/searches:reproduce/dose:reproduce/beyond:reproduce/study
    python reproduce/searches/others.py play WORLD [--tasks 200]    # chooses settings, then plays test tasks; resumes
    python reproduce/searches/others.py report                      # the table of docs/results/beyond

A search's critic is the world's learned value model. Policy and draws are those of docs/results/dose, whose AMC and
independent tries are the baselines.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from conditioning import iterated
from doses import LEARNED, MODELS, POLICIES, TEMPERATURES, Setting, tasks_of, world_of
from draws import Forest
from found import Found
from judges import ValueModel
from lockstep import Particle, Seat, Together
from looking_ahead import Sampled, looking_ahead
from playing import _model, _policy, read, read_particles
from weighing import weighed

from amc_agents.bench.statistics import paired
from amc_agents.files import replace_file
from amc_agents.markdown import table as table_in_markdown
from amc_agents.markdown import write_parts
from amc_agents.types import Task
from report import Lines, interval, lines_of
from subsampling import expected_pick
from tune import chosen, metric_of

RUNS = Path("runs/searches")
PAGE = Path("docs/results/beyond/README.md")
RAW = PAGE.parent / "raw"
DOSES = Path("docs/results/dose/raw")
WORLDS = ("crafting", "crafting-stock", "crafting-hidden", "crafting-stock-hidden")
ROUNDS = ((6, 8), (14, 3), (32, 1))
"""Training tasks of each round of successive halving, and how many settings survive it."""
BETAS = (0.02, 0.07, 0.25)
NAMES = ("looking ahead", "softened weights", "falling N", "iterated search")


@dataclass(frozen=True)
class Search:
    """A search with a setting."""

    kind: str
    setting: Setting
    sizes: tuple[int, ...] = (15,)

    @property
    def name(self) -> str:
        """Names the setting."""
        return self.setting.name + ("" if len(self.sizes) == 1 else "_N" + "-".join(map(str, self.sizes)))

    @property
    def points(self) -> tuple[int, ...]:
        """Steps after which to resample."""
        falling = {4: (5, 9, 13), 3: (6, 12)}
        return falling.get(len(self.sizes)) or self.setting.points


def grid(kind: str) -> list[Search]:
    """Return the 24 settings of a search, each at about the policy calls of fifteen tries."""
    if kind == "falling N":
        sizes: Sequence[tuple[int, ...]] = ((24, 18, 12, 8), (20, 14, 10))
        return [
            Search(kind, Setting((heat,), 0, beta), size) for heat, size, beta in product(TEMPERATURES, sizes, BETAS)
        ]
    return [Search(kind, Setting((heat,), n, beta)) for heat, n, beta in product(TEMPERATURES, (1, 3), BETAS)]


async def found_by(search: Search, seat: Seat, rng: np.random.Generator) -> Found[Particle]:
    """Run a search."""
    points, beta = search.points, search.setting.beta
    if search.kind == "looking ahead":
        return await looking_ahead(seat, 8, points, beta, rng, Sampled(15))
    if search.kind == "iterated search":
        return await iterated(seat, 14, 2, points, beta, rng)
    return await weighed(seat, search.sizes, points, beta, rng, 0.5 if search.kind == "softened weights" else None)


async def line_of(task: Task, search: Search, seat: Seat) -> dict[str, Any]:
    """Run a search on a task, and return its result."""
    rng = np.random.default_rng([0, *(zlib.crc32(text.encode()) for text in (task.id, search.kind, search.name))])
    found = await found_by(search, seat, rng)
    returns = [state.node.trajectory.return_ for state in found.states]
    return {
        "task": task.id, "critic": search.kind, "setting": search.name,
        "deployable": returns[int(np.argmax(found.values))], "oracle": max(returns), "mean": float(np.mean(returns)),
        "calls": seat.policy_calls, "policy_tokens": seat.policy_tokens, "critic_tokens": seat.critic_tokens,
    }  # fmt: skip


def played(name: str, group: str, n_tasks: int, searches: Sequence[Search]) -> list[dict[str, Any]]:
    """Play what a world's file lacks, and return everything in it."""
    path = RUNS / f"{name}-{group}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {(line["task"], line["critic"], line["setting"]) for line in read(path)}
    policy, model = _policy(POLICIES.get(name, str(world_of(name).model))), _model(MODELS[name, LEARNED])
    for task in tasks_of(name, group, n_tasks):
        left = [search for search in searches if (task.id, search.kind, search.name) not in known]
        if not left:
            continue
        together, judge = Together(Forest(policy, task, world_of(name).make, 0)), ValueModel(model)
        hidden = metric_of(name) == "deployable"
        seats = [Seat(together, judge, search.setting.temperatures, hidden) for search in left]
        runs = [line_of(task, search, seat) for search, seat in zip(left, seats, strict=True)]
        lines = asyncio.run(together.run(runs))
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
    return read(path)


def play(name: str, n_tasks: int) -> None:
    """Choose the setting of each search by successive halving, play the test tasks, and pack all runs."""
    metric, left = metric_of(name), {kind: grid(kind) for kind in NAMES}
    for n_tuning, kept in ROUNDS:
        scores: dict[tuple[str, str], list[float]] = defaultdict(list)
        ids = {task.id for task in tasks_of(name, "tune", n_tuning)}
        for line in played(name, "tune", n_tuning, [each for kind in NAMES for each in left[kind]]):
            if line["task"] in ids:
                scores[line["critic"], line["setting"]].append(line[metric] + 0.1 * line["mean"])
        for kind, searches in left.items():
            merits = {search: float(np.mean(scores[kind, search.name])) for search in searches}
            left[kind] = sorted(searches, key=lambda search: -merits[search])[:kept]
    for kind in NAMES:
        print(name, kind, left[kind][0].name, flush=True)
    played(name, "test", n_tasks, [left[kind][0] for kind in NAMES])
    for group in ("tune", "test"):
        text = (RUNS / f"{name}-{group}.jsonl").read_text(encoding="utf-8")
        lines = sorted(line for line in text.splitlines(keepends=True) if line.endswith("\n"))
        packed = gzip.compress("".join(lines).encode(), mtime=0)
        replace_file(RAW / f"others-{name}-{group}.jsonl.gz", packed)


def rows_of(name: str) -> list[list[str]]:
    """Compare each search with AMC, and with Best-of-M at equal policy calls, on the tasks that all have."""
    metric, (setting, heat) = metric_of(name), chosen(name, LEARNED)
    doses = lines_of(DOSES / f"{name}.jsonl.gz")
    amc, pool = doses[LEARNED, setting.name], doses[LEARNED, f"pool_T{heat:g}"]
    rows = []
    for (kind, of), runs in sorted(lines_of(RAW / f"others-{name}-test.jsonl.gz").items()):
        common = sorted(runs.keys() & amc.keys() & pool.keys())
        picks, calls = scores_of(runs, common, metric), float(np.mean([runs[task]["calls"] for task in common]))
        tries = calls / float(np.mean([pool[task]["calls"] / len(pool[task]["returns"]) for task in common]))
        matched = {(task, 0): expected_pick(read_particles(pool[task]), tries, metric) for task in common}
        cells = [
            kind,
            of.replace("every0_", "").replace("_", ", "),
            str(len(common)),
            f"{np.mean(list(picks.values())):.3f}",
            f"{calls:.0f}",
        ]
        to_pool = f"{interval(paired(picks, matched))} ({tries:.1f})"
        rows.append([name, *cells, to_pool, interval(paired(picks, scores_of(amc, common, metric)))])
    return rows


def scores_of(lines: Lines, tasks: Sequence[str], metric: str) -> Mapping[tuple[str, int], float]:
    """Return the picks on some tasks."""
    return {(task, 0): float(lines[task][metric]) for task in tasks}


def main() -> None:
    """Play, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("play", "report"))
    parser.add_argument("world", nargs="?", choices=WORLDS)
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    if options.what == "play":
        play(options.world, options.tasks)
        return
    header = ["world", "search", "setting", "tasks", "pick", "policy calls", "minus Best-of-M at equal calls (M)"]
    rows = [row for name in WORLDS if (RAW / f"others-{name}-test.jsonl.gz").exists() for row in rows_of(name)]
    write_parts(PAGE, {"others": table_in_markdown([*header, "minus AMC"], rows, "lllrrrrr")})


if __name__ == "__main__":
    main()
