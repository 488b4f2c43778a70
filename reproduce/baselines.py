"""Compare tree searches with Best-of-N and AMC at equal policy calls, in the crafting world, with the shipped models.

    python reproduce/baselines.py tune docs/results/baselines        # temperatures of the searches, on training tasks
    python reproduce/baselines.py particles docs/results/baselines   # Best-of-N and AMC on 200 held-out tasks
    python reproduce/baselines.py trees docs/results/baselines       # Tree of Thoughts and LATS on the same tasks
    python reproduce/baselines.py report docs/results/baselines      # tables, with paired intervals

Every method sees rewards and ends at its first success. Each stage stores every run as it ends, in a folder of its own,
and goes on where it was interrupted. Best-of-N and AMC keep the settings that `amc tune` chose for them on training
tasks of the same difficulty (`amc_agents.bench.crafting`). No model, and no setting, was chosen on the held-out tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from amc_agents.bench import crafting
from amc_agents.bench.methods import Method, Tuned, amc, best_of_n, lats, stopping, tree_of_thoughts
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.statistics import Measured, estimate, paired

TEMPERATURES = (0.4, 0.6, 0.8, 1.0)
TUNING_TASKS = ComparisonPlan(methods=(), n_tasks=16, split="train", first=60_000, plain=True)
HELD_OUT_TASKS = ComparisonPlan(methods=(), n_tasks=200, split="test", first=30_000, plain=True)
SAME_N = {"width": 5, "samples": 3}
"""As many policy calls per step as 15 particles, if no two turns are equal."""
SAME_CALLS = {"width": 10, "samples": 3}
"""About as many policy calls as AMC with 15 particles, on the training tasks."""
TUNING_CALLS, MAX_CALLS = 350, 500
"""Limits of LATS: in the tuning, and with about as many calls in the mean as AMC. A success ends the search before."""
CHOSEN = {"tot": 0.4, "lats": 0.6}
"""Temperatures that `tune` found."""


def tuned_methods() -> list[Method]:
    """Return the tree searches at every temperature."""
    settings = [Tuned(temperature=temperature) for temperature in TEMPERATURES]
    searches = [
        *(tree_of_thoughts(tuned, **SAME_N) for tuned in settings),
        *(lats(tuned, max_calls=TUNING_CALLS) for tuned in settings),
    ]
    return [replace(method, name=f"{method.name} T={method.temperature}") for method in searches]


def particle_methods() -> list[Method]:
    """Return Best-of-N and AMC. Best-of-N in sight of rewards is SMC with f = 0 that never resamples."""
    parallel = replace(best_of_n(crafting.BEST_OF_N), critic="uniform")
    return [stopping(parallel), stopping(amc(crafting.AMC))]


def tree_methods() -> list[Method]:
    """Return the searches, with Tree of Thoughts in two sizes."""
    beam, search = Tuned(temperature=CHOSEN["tot"]), Tuned(temperature=CHOSEN["lats"])
    wide = replace(tree_of_thoughts(beam, **SAME_CALLS), name="tot-wide", label="Tree of Thoughts, wider")
    return [tree_of_thoughts(beam, **SAME_N), wide, lats(search, max_calls=MAX_CALLS)]


WORKERS = 6
"""Number of processes that the stored runs were made with at most."""
HEADING = "| method | success | policy calls | critic calls | tokens |"
STAGES = {
    "tune": (tuned_methods, TUNING_TASKS),
    "particles": (particle_methods, HELD_OUT_TASKS),
    "trees": (tree_methods, HELD_OUT_TASKS),
}
"""Stage -> its methods and tasks."""


def report(out: Path) -> None:
    """Print the tuning, and the comparison on the tasks that every method has finished."""
    print("Tuning:\n")
    print_table(read_run_results(out / "tune"), TUNING_TASKS)
    print("\nHeld-out tasks, and the difference of success with its 95% interval:\n")
    held_out = [*read_run_results(out / "particles"), *read_run_results(out / "trees")]
    print_table(held_out, HELD_OUT_TASKS, {"minus Best-of-N": "best-of-n-stop", "minus AMC": "amc-stop"})


def print_table(
    records: Sequence[RunResult], plan: ComparisonPlan, references: Mapping[str, str] | None = None
) -> None:
    """Print a row for each method; `references`: heading -> the method that the others are compared with."""
    references = references or {}
    runs: dict[str, dict[str, RunResult]] = {}
    for record in records:
        runs.setdefault(record.method, {})[record.task] = record
    done = set.intersection(*(set(of) for of in runs.values()))
    tasks = fairly_finished([task.id for task in plan.tasks()], done)
    heading = HEADING + "".join(f" {name} |" for name in references)
    print(f"{len(tasks)} tasks\n\n{heading}\n|---|{'---:|' * (4 + len(references))}")
    for name, of in runs.items():
        success = successes(of, tasks)
        rate = estimate(success)
        row = [name, f"{rate.mean:.3f} ± {rate.standard_error or 0:.3f}"]
        costs = [of[task].cost for task in tasks]
        for amounts in ([c.policy_calls for c in costs], [c.critic_calls for c in costs], [c.tokens for c in costs]):
            row.append(f"{np.mean(amounts):,.0f}")
        row += [
            "" if reference == name else difference(success, successes(runs[reference], tasks))
            for reference in references.values()
        ]
        print(f"| {' | '.join(row)} |")


def fairly_finished(order: Sequence[str], done: Collection[str]) -> list[str]:
    """Return the tasks before the first that is missing, in each worker's share of the tasks.

    When a comparison is interrupted, the last tasks in progress are missing, and these are the long ones, which fail
    more often: to keep what is finished would favour successes.
    """
    shares = [order[worker::WORKERS] for worker in range(WORKERS)]
    return [task for share in shares for task in takewhile(done.__contains__, share)]


def successes(runs: Mapping[str, RunResult], tasks: Sequence[str]) -> Measured:
    """Return the success of each task."""
    return {(task, runs[task].seed): runs[task].scores.success for task in tasks}


def difference(success: Measured, reference: Measured) -> str:
    """Format a paired difference."""
    found = paired(success, reference)
    return f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=[*STAGES, "report"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    chosen = parser.parse_args()
    if chosen.stage == "report":
        report(chosen.out)
        return
    methods, plan = STAGES[chosen.stage]
    folder = chosen.out / chosen.stage
    run_plan(replace(plan, methods=tuple(methods())), folder, resume=folder.exists(), n_workers=chosen.workers)


if __name__ == "__main__":
    main()
