"""Compare tree searches with Best-of-N and AMC at equal policy calls, in the crafting world, with the shipped models.

    python reproduce/baselines.py tune docs/results/baselines        # temperatures of the searches, on training tasks
    python reproduce/baselines.py particles docs/results/baselines   # Best-of-N and AMC on 200 held-out tasks
    python reproduce/baselines.py trees docs/results/baselines       # Tree of Thoughts and LATS on the same tasks
    python reproduce/baselines.py report docs/results/baselines      # tables, with paired intervals

Every method sees rewards and ends at its first success. Each stage stores every run as it ends, in a folder of its own,
and goes on where it was interrupted. Best-of-N and AMC keep the settings that `amc tune` chose for them on training tasks
of the same difficulty (`amc_agents.bench.crafting`). No model, and no setting, was chosen on the held-out tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from amc_agents.bench import crafting
from amc_agents.bench.methods import Method, Tuned, amc, best_of_n, lats, stopping, tree_of_thoughts
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.statistics import estimate

TEMPERATURES = (0.4, 0.6, 0.8, 1.0)
TUNING_TASKS = ComparisonPlan(methods=(), n_tasks=24, split="train", first=60_000, plain=True)
HELD_OUT_TASKS = ComparisonPlan(methods=(), n_tasks=200, split="test", first=30_000, plain=True)
SAME_N = {"width": 5, "samples": 3}
"""As many policy calls per step as 15 particles, if no two turns are equal."""
SAME_CALLS = {"width": 8, "samples": 3}
MAX_CALLS = 350
"""Limit of LATS, whose mean is below it, since a success ends the search."""
CHOSEN = {"tot": 0.8, "lats": 0.8}
"""Temperatures that `tune` found."""


def tuned_methods() -> list[Method]:
    """Return the tree searches at every temperature."""
    settings = [Tuned(temperature=temperature) for temperature in TEMPERATURES]
    searches = [
        *(tree_of_thoughts(tuned, **SAME_N) for tuned in settings),
        *(lats(tuned, max_calls=MAX_CALLS) for tuned in settings),
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


STAGES = {
    "tune": (tuned_methods, TUNING_TASKS),
    "particles": (particle_methods, HELD_OUT_TASKS),
    "trees": (tree_methods, HELD_OUT_TASKS),
}
"""Stage -> its methods and tasks."""


def report(records: Sequence[RunResult]) -> None:
    """Print a table of all methods on the tasks that every method has finished, and the paired differences."""
    runs = {name: {one.task: one for one in records if one.method == name} for name in {one.method for one in records}}
    tasks = sorted(set.intersection(*(set(of) for of in runs.values())))
    print(f"{len(tasks)} tasks\n\n| method | success | policy calls | critic calls | tokens |\n|---|---:|---:|---:|---:|")
    for name, of in sorted(runs.items()):
        success = estimate([of[task].scores.success for task in tasks])
        cost = [of[task].cost for task in tasks]
        means = [np.mean(column) for column in zip(*((c.policy_calls, c.critic_calls, c.tokens) for c in cost), strict=True)]
        print(f"| {name} | {success.mean:.3f} ± {success.error:.3f} | " + " | ".join(f"{mean:,.0f}" for mean in means) + " |")


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=[*STAGES, "report"])
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args()
    if chosen.stage == "report":
        report(chosen.out)
        return
    methods, plan = STAGES[chosen.stage]
    folder = chosen.out / chosen.stage
    run_plan(replace(plan, methods=tuple(methods())), folder, resume=folder.exists())


if __name__ == "__main__":
    main()
