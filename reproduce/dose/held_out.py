"""Play the tuned critics on test tasks.

    python reproduce/dose/held_out.py WORLD [--tasks 150] [--more 100] [--critics ...]
    python reproduce/dose/held_out.py WORLD --rollouts --tasks 20     # V^pi, at the oracle's temperature

First the endpoint and the curve together, on the first tasks; then the endpoint's methods alone on further tasks. The
command resumes; finished tasks are packed into docs/results/dose/raw.
"""

from __future__ import annotations

import argparse
import gzip
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from amc_agents.files import replace_file
from reproduce.dose.doses import LEARNED, PLAIN, POOL, PROPOSALS, ROLLOUTS, TRIES, WORLDS, Setting, tasks_of
from reproduce.dose.playing import Run, file_of, play
from reproduce.dose.tune import chosen, critics_of

PAGE = Path("docs/results/dose/README.md")
RAW = PAGE.parent / "raw"


def run(name: str, critics: Sequence[str], first: int, n_tasks: int) -> None:
    """Play AMC and the pools of some critics: at the temperature of Best-of-N, and at AMC's for the AUC."""
    runs: list[Run] = [(LEARNED, PROPOSALS)] if name not in PLAIN and LEARNED in critics else []
    pools: dict[float, list[str]] = defaultdict(list)
    for critic in critics:
        setting, heat = chosen(name, critic)
        runs.append((critic, setting))
        for each in {heat, setting.temperatures[0]}:
            pools[each].append(critic)
    tasks = tasks_of(name, "test", first + n_tasks)[first:]
    play(name, "test", 0, tasks, runs, pools, critics, TRIES.get(name, POOL))


def run_rollouts(name: str, n_tasks: int) -> None:
    """Play AMC with V^pi, at the oracle's temperature and beta and every third step, and the oracle's Best-of-N."""
    oracle, heat = chosen(name, "oracle")
    setting = Setting(oracle.temperatures, 3, oracle.beta)
    play(name, "test", 0, tasks_of(name, "test", n_tasks), [(ROLLOUTS, setting)], {heat: [ROLLOUTS]})


def pack(name: str) -> None:
    """Write the runs so far. The same runs give the same bytes."""
    text = file_of(name, "test", 0).read_text(encoding="utf-8")
    lines = sorted(line for line in text.splitlines(keepends=True) if line.endswith("\n"))
    RAW.mkdir(parents=True, exist_ok=True)
    replace_file(RAW / f"{name}.jsonl.gz", gzip.compress("".join(lines).encode(), mtime=0))


def main() -> None:
    """Play and pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--critics", nargs="+", help="default: all")
    parser.add_argument("--tasks", type=int, default=150)
    parser.add_argument("--more", type=int, default=0, help="further tasks, for the learned critic alone")
    parser.add_argument("--rollouts", action="store_true")
    parser.add_argument("--pack", action="store_true", help="pack the runs that exist, and play none")
    options = parser.parse_args()
    if options.rollouts:
        run_rollouts(options.world, options.tasks)
    elif not options.pack:
        run(options.world, options.critics or critics_of(options.world), 0, options.tasks)
        run(options.world, [LEARNED], options.tasks, options.more)
    pack(options.world)


if __name__ == "__main__":
    main()
