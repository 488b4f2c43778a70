"""Tables of the pages in docs/results/worlds, from the raw results of `amc bench`.

    python reproduce/worlds/tables.py pack RUNS... PAGE/raw/NAME.jsonl.gz   # records of `amc bench`, or packed ones
    python reproduce/worlds/tables.py write PAGE                            # PAGE/README.md, between its markers
    python reproduce/worlds/tables.py overview FILE PAGES...                # a row per page, between FILE's markers

PAGE/rows.json names the rows: `pool` is the file of a large Best-of-N, and each of `rows` has a label, N, a file and a
method. The pool stands for every smaller Best-of-M: the table has its expected best of M trajectories drawn without
replacement, which has less noise than a single draw. "Equal calls" draws from the tries of all seeds and takes the M
whose policy calls are those of the row, between two whole numbers if need be; where all tries make fewer calls, the
cell says so. A row whose calls each draw K turns, such as a vote, has K as its `samples`; one that `stops` at its first
success is compared with a Best-of-M that plays one trajectory after the other and stops, too.
Each of `differences`, if there are any, has a label and two rows a and b, as [file, method]. For the overview,
`overview` has the world, the policy, and the N of the rows "smc" and "amc" to be shown, the first ones with this N.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.results_folder import ItemKey
from amc_agents.bench.statistics import Measured, estimate, paired
from reproduce.pages import write_parts

Pool = Mapping[tuple[str, int], RunResult]
"""(task, seed) -> the run."""
HEADING = (
    "| method | N | success | best return | mean particle | policy calls | success minus Best-of-N "
    "| success minus Best-of-M at equal calls |"
)
OVERVIEW_HEADING = (
    "| world | policy | runs | N | single run | Best-of-N | SMC, rewards only | AMC "
    "| AMC minus Best-of-M at equal calls | AMC minus SMC |"
)
SOLVED = 1.0 - 1e-6
"""Returns are sums of floating-point rewards."""


def pack(runs: Sequence[Path], file: Path) -> None:
    """Store the records of folders and packed files in one compressed file, whose bytes depend on the records only.

    Raises:
        ValueError: two sources have different records of the same run.
    """
    records: dict[ItemKey, RunResult] = {}
    for source in runs:
        for record in read_run_results(source) if source.is_dir() else read_packed(source):
            if records.setdefault(record.key, record) != record:
                raise ValueError(f"{source} has another record of {record.key} than an earlier source: leave one out")
    text = "".join(json.dumps(records[key].to_json()) + "\n" for key in sorted(records))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_packed(file: Path) -> list[RunResult]:
    """Return the records of a packed file."""
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return [RunResult.from_json(json.loads(line)) for line in lines]


def unpack(file: Path, method: str) -> Pool:
    """Return the runs of a method."""
    return {(record.task, record.seed): record for record in read_packed(file) if record.method == method}


def expected_best(values: Sequence[float], size: float) -> float:
    """Return the expected maximum of `size` of the values, drawn without replacement; linear between whole sizes."""
    below = math.floor(size)
    share = size - below
    lower = _expected_best(values, below) if share < 1 else 0.0
    return lower if share == 0 else (1 - share) * lower + share * _expected_best(values, below + 1)


def _expected_best(values: Sequence[float], size: int) -> float:
    if not 1 <= size <= len(values):
        raise ValueError(f"expected 1 to {len(values)} of the values, got {size}: play a larger pool")
    total = math.comb(len(values), size)
    # The k-th smallest value is the best of the subsets that hold it and only smaller ones.
    return sum(value * math.comb(rank, size - 1) / total for rank, value in enumerate(sorted(values)))


def best_of(pool: Pool, size: float, score: Callable[[float], float]) -> Measured:
    """Return the expected best score of `size` trajectories of each run of the pool."""
    return {
        key: expected_best([score(each) for each in run.particles.returns], size)
        for key, run in pool.items()
        if run.particles is not None
    }


def tries_until_success(returns: Sequence[float], size: float) -> float:
    """Return the expected number of tries, of at most `size` in random order, up to the first success."""
    failures = sum(not solved(value) for value in returns)
    # A further try is made where all before it have failed.
    made = [math.comb(failures, before) / math.comb(len(returns), before) for before in range(math.ceil(size))]
    whole = math.floor(size)
    return sum(made[:whole]) + (size - whole) * sum(made[whole:])


def stopping_size(pool: Pool, calls: float) -> float:
    """Return the M whose Best-of-M that stops at its first success makes so many calls; infinite: the pool has fewer.

    A try is taken to make the mean calls of its task's tries, which is exact for independent tries (Wald's identity).
    """
    sizes = range(1, _smallest(pool) + 1)
    each = [(run.cost.policy_calls / run.scores.particles, run.particles) for run in pool.values()]
    costs = [
        np.mean([mean * tries_until_success(tries.returns, size) for mean, tries in each if tries is not None])
        for size in sizes
    ]
    return float(np.interp(calls, costs, sizes, right=math.inf))


def of_all_seeds(pool: Pool) -> Pool:
    """Return the pool with the tries of all its seeds in each run of a task: they are draws of the same policy."""
    tries: dict[str, list[float]] = {}
    for (task, _), run in pool.items():
        tries.setdefault(task, []).extend(run.particles.returns if run.particles is not None else ())
    return {
        key: replace(run, particles=replace(run.particles, returns=tuple(tries[key[0]])))
        for key, run in pool.items()
        if run.particles is not None
    }


def _smallest(pool: Pool) -> int:
    """Return the number of tries of the task that has the fewest."""
    return min(len(run.particles.returns) for run in pool.values() if run.particles is not None)


def solved(value: float) -> float:
    """Return 1 for the return of a success."""
    return float(value >= SOLVED)


def table(page: Path) -> str:
    """Return the page's table: single run, Best-of-N, and the rows of rows.json."""
    plan: dict[str, Any] = json.loads((page / "rows.json").read_text(encoding="utf-8"))
    pool = unpack(page / "raw" / plan["pool"], "best-of-n")
    lines = [HEADING, f"|---|{'---:|' * 7}"]
    lines += [_pool_row(pool, size) for size in (1, *plan["sizes"])]
    lines += [_row(pool, unpack(page / "raw" / row["file"], row["method"]), row) for row in plan["rows"]]
    counts = f"{len({task for task, _ in pool})} tasks, {_seeds(pool)}"
    return "\n".join([counts, "", *lines, *_differences(page / "raw", plan.get("differences", []), pool)])


def _differences(raw: Path, wanted: Sequence[Mapping[str, Any]], pool: Pool) -> list[str]:
    """Return a second table: paired differences of two rows, over the seeds that both have."""
    if not wanted:
        return []
    lines = ["", "| difference | success | best return | mean particle |", f"|---|{'---:|' * 3}"]
    for pair in wanted:
        a, b = (unpack(raw / file, method) for file, method in (pair["a"], pair["b"]))
        scores: list[Callable[[RunResult], float]] = [
            lambda run: solved(run.scores.oracle),
            lambda run: run.scores.oracle,
            lambda run: run.scores.mean,
        ]
        cells = [
            _difference({key: score(run) for key, run in a.items()}, {key: score(run) for key, run in b.items()})
            for score in scores
        ]
        label = _label(pair["label"], {key: a[key] for key in a.keys() & b.keys()}, pool)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _pool_row(pool: Pool, size: int) -> str:
    label = "single run" if size == 1 else "Best-of-N"
    success, best = best_of(pool, size, solved), best_of(pool, size, float)
    mean = {key: run.scores.mean for key, run in pool.items()}
    calls = _calls_of_a_run(pool) * size
    return f"| {label} | {size} | {_mean(success)} | {_mean(best)} | {_mean(mean)} | {calls:.0f} | | |"


def _row(pool: Pool, runs: Pool, row: Mapping[str, Any]) -> str:
    success = {key: solved(run.scores.oracle) for key, run in runs.items()}
    calls = _calls(runs) * row.get("samples", 1)
    common = {key: pool[key] for key in runs}
    tries, stops = of_all_seeds(common), bool(row.get("stops"))
    # A row that makes fewer calls than a single run is compared with a single run.
    wanted = stopping_size(tries, calls) if stops else max(1.0, calls / _calls_of_a_run(common))
    equal = min(wanted, float(_smallest(tries)))
    marks = f"{', stopping' * stops}{', all tries: fewer calls' * (wanted > equal)}"
    # A row may have fewer seeds than the pool; its differences are those to the same seeds of the pool.
    label = _label(row["label"], runs, pool)
    cells = [
        f"{label} | {row['n']} | {_mean(success)} | {_mean({k: r.scores.oracle for k, r in runs.items()})}",
        f"{_mean({key: run.scores.mean for key, run in runs.items()})} | {calls:.0f}",
        _difference(success, best_of(common, row["n"], solved)),
        f"{_difference(success, best_of(tries, equal, solved))} (M = {equal:.1f}{marks})",
    ]
    return f"| {' | '.join(cells)} |"


def _label(label: str, runs: Pool, pool: Pool) -> str:
    """Add the number of seeds to a row's label, unless it is that of the pool."""
    return label if _seeds(runs) == _seeds(pool) else f"{label} ({_seeds(runs)})"


def _seeds(runs: Pool) -> str:
    number = len({seed for _, seed in runs})
    return f"{number} seed{'s' if number > 1 else ''}"


def deployable(page: Path) -> str:
    """Return the page's table of picks that saw no reward: those of the pool, and of the rows that have such a pick."""
    plan: dict[str, Any] = json.loads((page / "rows.json").read_text(encoding="utf-8"))
    pool = unpack(page / "raw" / plan["pool"], "best-of-n")
    alone = best_of(pool, 1, solved)
    lines = ["| method | N | deployable pick | minus single run |", f"|---|{'---:|' * 3}"]
    most = max(run.scores.particles for run in pool.values())
    for row in ({"label": "Best-of-N", "n": most}, *plan["rows"]):
        runs = unpack(page / "raw" / row["file"], row["method"]) if "file" in row else pool
        picks = {key: run.scores.deployable for key, run in runs.items()}
        success = {key: solved(pick) for key, pick in picks.items() if pick is not None}
        if success:
            label = _label(row["label"], {key: runs[key] for key in success}, pool)
            lines.append(f"| {label} | {row['n']} | {_mean(success)} | {_difference(success, alone)} |")
    return "\n".join(lines)


def overview(pages: Sequence[Path], file: Path) -> str:
    """Return a table with a row for each page, which the row links to from a file."""
    lines = [OVERVIEW_HEADING, f"|---|---|{'---:|' * 8}"]
    return "\n".join([*lines, *(_overview_row(page, file) for page in pages)])


def _overview_row(page: Path, file: Path) -> str:
    plan: dict[str, Any] = json.loads((page / "rows.json").read_text(encoding="utf-8"))
    about, pool = plan["overview"], unpack(page / "raw" / plan["pool"], "best-of-n")
    size, (smc, amc) = about["n"], (_shown(page, plan, method) for method in ("smc", "amc"))
    success = [{key: solved(run.scores.oracle) for key, run in runs.items()} for runs in (smc, amc)]
    common = {key: pool[key] for key in amc}
    equal = best_of(of_all_seeds(common), _calls(amc) / _calls_of_a_run(common), solved)
    link = Path(os.path.relpath(page, file.parent)).as_posix()
    scores = [best_of(common, 1, solved), best_of(common, size, solved), *success]
    cells = [f"{estimate(score).mean:.3f}" for score in scores]
    cells += [_difference(success[1], equal), _difference(success[1], success[0])]
    return f"| [{about['world']}]({link}/README.md) | {about['policy']} | {len(amc)} | {size} | {' | '.join(cells)} |"


def _shown(page: Path, plan: Mapping[str, Any], method: str) -> Pool:
    """Return the runs of the first row of a method that has the overview's N; its name may end with N."""
    size = plan["overview"]["n"]
    rows = [row for row in plan["rows"] if row["n"] == size and row["method"] in (method, f"{method}-{size}")]
    return unpack(page / "raw" / rows[0]["file"], rows[0]["method"])


def _calls(runs: Pool) -> float:
    return float(np.mean([run.cost.policy_calls for run in runs.values()]))


def _calls_of_a_run(pool: Pool) -> float:
    return float(np.mean([run.cost.policy_calls / run.scores.particles for run in pool.values()]))


def _mean(measured: Measured) -> str:
    found = estimate(measured)
    return f"{found.mean:.3f} ± {found.standard_error or 0:.3f}"


def _difference(a: Measured, b: Measured) -> str:
    found = paired(a, b)
    text = f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def main(command: str, *given: str) -> None:
    """Execute a command."""
    paths = [Path(path) for path in given]
    if command == "pack":
        pack(paths[:-1], paths[-1])
    elif command == "overview":
        write_parts(paths[0], {"overview": overview(paths[1:], paths[0])})
    else:
        page, readme = paths[0], paths[0] / "README.md"
        write_parts(readme, {"results": table(page)})
        if "<!-- deployable -->" in readme.read_text(encoding="utf-8"):
            write_parts(readme, {"deployable": deployable(page)})


if __name__ == "__main__":
    main(*sys.argv[1:])
