"""Compare single runs, Best-of-15 and AMC in the workshop worlds, with settings tuned on training tasks.

    python reproduce/workshop/experiment.py tune [--worlds crafting-stock ...] [--methods best-of-n ...]
    python reproduce/workshop/experiment.py run [--tasks 100]

`tune` plays every candidate setting of each method on 24 training tasks and writes the best to `chosen.json`; `run`
plays the chosen settings on test tasks. A setting in a world is a shard with a folder of its own in runs/workshop, so
that both commands resume. Finished test shards are packed into docs/results/worlds/raw; `pack` packs unfinished ones
too. `report.py` makes the tables.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from amc_agents.bench import methods
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.report import measured
from amc_agents.bench.statistics import estimate
from amc_agents.files import replace_file

HOME = Path("reproduce/workshop")
"""Relative to the root of the repository, the working directory of the scripts."""
CHOSEN = HOME / "chosen.json"
RUNS = Path("runs/workshop")
RAW = Path("docs/results/worlds/raw")
WORLDS = ("crafting-stock", "crafting-hidden", "crafting-stock-hidden")
PLANNER = "amc_agents.bench.workshop_critic:WorkshopCritic"
FIRST_TUNING_TASK, N_TUNING_TASKS = 100_000, 24
"""The value model was trained on the tasks from 0 of the same split."""
SINGLE, BEST, AMC, HIDDEN, ORACLE = "single", "best-of-n", "amc", "amc-hidden", "amc-planner"
EVERY_STEP, EVERY_OTHER, EVERY_FOURTH = tuple(range(1, 20)), tuple(range(2, 20, 2)), (4, 8, 12, 16)
OF_CRITIC = (
    Tuned(0.5, EVERY_FOURTH, 0.1),
    Tuned(0.8, EVERY_FOURTH, 0.1),
    Tuned(0.5, EVERY_OTHER, 0.2),
    Tuned(0.8, EVERY_OTHER, 0.2),
)
OF_SAMPLING = tuple(Tuned(temperature, (), 0.1) for temperature in (0.3, 0.5, 0.7, 0.9))
CANDIDATES: Mapping[str, tuple[Tuned, ...]] = {
    SINGLE: OF_SAMPLING,
    BEST: OF_SAMPLING,
    AMC: OF_CRITIC,
    ORACLE: tuple(Tuned(temperature, EVERY_STEP, 0.05) for temperature in (0.5, 0.8, 1.1)),
}
"""Settings to try. A single run and Best-of-15 share pools of 15 independent trajectories."""
METHODS = (SINGLE, BEST, AMC, HIDDEN, ORACLE)
METRIC = {SINGLE: "mean", HIDDEN: "deployable"}
"""What a method is compared by, and tuned for; the others by the oracle's pick. With hidden rewards, AMC uses the
settings tuned with observed rewards, like `amc bench`."""


def method_of(name: str, tuned: Tuned) -> Method:
    """Return the method with a setting, named by both."""
    steps = {(): "never", EVERY_STEP: "every-1", EVERY_OTHER: "every-2", EVERY_FOURTH: "every-4"}[tuned.steps]
    if name in (SINGLE, BEST):
        return replace(methods.best_of_n(tuned), name=f"pool-T{tuned.temperature:g}")
    made = methods.amc_hidden(tuned) if name == HIDDEN else methods.amc(tuned)
    made = replace(made, critic=PLANNER) if name == ORACLE else made
    return replace(made, name=f"{name}-T{tuned.temperature:g}-{steps}-beta{tuned.beta:g}")


def play(world: str, method: Method, split: str, n_tasks: int, first: int, critic: str | None) -> list[RunResult]:
    """Play the missing runs of a shard and return all of them. No critic: the policy's value model."""
    plan = ComparisonPlan(
        methods=(method,), n_tasks=n_tasks, world=world, split=split, first=first, critic=critic, plain=True
    )
    return run_plan(plan, RUNS / split / world / method.name, resume=True, n_workers=1, n_concurrent=1)


def tune(world: str, names: list[str]) -> None:
    """Choose the settings of the named methods."""
    for name in names:
        critic = None if name == AMC else "uniform"
        metric, tried = METRIC.get(name, "oracle"), []
        for tuned in CANDIDATES[name]:
            records = play(world, method_of(name, tuned), "train", N_TUNING_TASKS, FIRST_TUNING_TASK, critic)
            scores = {each: estimate(measured(records, each)).mean for each in {metric, "top5"}}
            tried.append({**asdict(tuned), "scores": scores})
            print(world, method_of(name, tuned).name, scores, flush=True)
        best = max(tried, key=lambda cell: (cell["scores"][metric], cell["scores"]["top5"]))
        table = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
        table.setdefault(world, {})[name] = {"chosen": best, "tried": tried}
        CHOSEN.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def chosen(world: str, name: str) -> Method:
    """Return the method with its chosen setting."""
    cell = json.loads(CHOSEN.read_text(encoding="utf-8"))[world][AMC if name == HIDDEN else name]["chosen"]
    return method_of(name, Tuned(cell["temperature"], tuple(cell["steps"]), cell["beta"]))


def packed(world: str, method: Method) -> Path:
    """Path of a test shard's results."""
    return RAW / f"{world}-{method.name}.jsonl.gz"


def unpack(world: str, method: Method) -> list[RunResult]:
    """Read a test shard's results."""
    lines = gzip.decompress(packed(world, method).read_bytes()).decode().splitlines()
    return [RunResult.from_json(json.loads(line)) for line in lines]


def pack(world: str, method: Method, records: Sequence[RunResult]) -> None:
    """Write a test shard's results. The same results give the same bytes."""
    rows = [json.dumps(record.to_json()) + "\n" for record in sorted(records, key=lambda record: record.key)]
    RAW.mkdir(parents=True, exist_ok=True)
    replace_file(packed(world, method), gzip.compress("".join(rows).encode(), mtime=0))


def run(world: str, names: list[str], n_tasks: int) -> None:
    """Play the chosen settings on test tasks and pack the results."""
    for name in names:
        method = chosen(world, name)
        records = play(world, method, "test", n_tasks, 0, "uniform" if name == ORACLE else None)
        pack(world, method, records)
        print(world, method.name, estimate(measured(records, METRIC.get(name, "oracle"))), flush=True)


def pack_unfinished(world: str, names: list[str]) -> None:
    """Pack the runs that exist so far."""
    table = json.loads(CHOSEN.read_text(encoding="utf-8")).get(world, {})
    for name in names:
        if (AMC if name == HIDDEN else name) in table:
            method = chosen(world, name)
            folder = RUNS / "test" / world / method.name
            if folder.exists() and (records := read_run_results(folder)):
                pack(world, method, records)
                print(world, method.name, len(records), flush=True)


def main() -> None:
    """Tune or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["tune", "run", "pack"])
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--tasks", type=int, default=100)
    options = parser.parse_args()
    for world in options.worlds:
        names = [name for name in options.methods if name != HIDDEN or "hidden" in world]
        if options.command == "tune":
            tune(world, [name for name in names if name in CANDIDATES])
        elif options.command == "run":
            run(world, names, options.tasks)
        else:
            pack_unfinished(world, names)


if __name__ == "__main__":
    main()
