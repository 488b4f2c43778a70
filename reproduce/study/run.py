"""Run the unfinished shards of the study in order. Every shard can be resumed.

    python reproduce/study/run.py [SHARD ...] [--minutes 60] [--workers 2] [--list]

Every run of a shard is saved in runs/study/SHARD when it ends. A finished shard is packed into
docs/results/study/raw/SHARD.jsonl.gz: settings in the first line, then a record per line. After --minutes no further
shard is started.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar

from amc_agents.bench.plan import run_plan
from amc_agents.cli.shared_options import available_cpus
from reproduce.study.ablations import ABLATIONS
from reproduce.study.packed import pack, packed
from reproduce.study.room import ROOMS
from reproduce.study.settings import Shard, TrainingShard, shards

RUNS = Path("runs/study")
TOGETHER = 1
"""Concurrent runs per process. With three, each took a tenth longer, because their keys and values exceed the
processor's cache."""


def run(shard: Shard | TrainingShard, n_workers: int, console: Console) -> None:
    """Run a shard, resumed if necessary."""
    plan, start = shard.plan, time.perf_counter()
    with Bar(console=console) as bar:
        line = bar.add_task(shard.name, total=len(plan.methods) * plan.n_tasks)
        records = run_plan(
            plan, RUNS / shard.name, resume=True, n_workers=n_workers, n_concurrent=TOGETHER,
            progress=lambda done: bar.update(line, completed=done),
        )  # fmt: skip
    comparison = plan.comparison()
    pack(shard.name, {"settings": comparison.settings, "methods": comparison.method_settings}, records)
    console.print(f"{shard.name}: {len(records)} runs in {time.perf_counter() - start:.0f} s")


def main() -> None:
    """Run the named shards, or all unfinished shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", metavar="SHARD")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--list", action="store_true", help="list finished and unfinished shards, and exit")
    options = parser.parse_args()
    console = Console()
    every: list[Shard | TrainingShard] = [*shards(), *ABLATIONS.values(), *ROOMS]
    known = {shard.name: shard for shard in every}
    unknown = sorted(set(options.shards) - set(known))
    if unknown:
        parser.error(f"unknown shard {', '.join(unknown)}; --list shows all")
    if options.list:
        for name in known:
            console.print(f"{'done' if packed(name).exists() else '    '}  {name}", highlight=False)
        return
    # Exclude the libraries' objects from garbage collection, which took a twentieth of the time.
    gc.freeze()
    gc.set_threshold(100_000, 50)
    start = time.monotonic()
    for name in options.shards or known:
        if packed(name).exists():
            continue
        if time.monotonic() - start > 60 * options.minutes:
            console.print(f"stopped after {options.minutes:g} minutes; run again for the rest")
            return
        run(known[name], options.workers, console)


if __name__ == "__main__":
    main()
