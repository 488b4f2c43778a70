"""Tune and compare methods in a registered world: `amc tune` with a small grid, and `amc bench` by a plain loop.

    python reproduce/worlds/registered.py tune alfworld runs/tune --tasks 16 --particles 8
    python reproduce/worlds/registered.py play alfworld runs/test --methods best-of-n amc:5 amc amc:5@embedded:OTHER \
        --tuned runs/tune/tuning.json

Both resume. A method is NAME[:N][@CRITIC]; the results call it NAME, NAME-N or NAME-N-other. For a tree search, N is
WIDTHxSAMPLES (tot:3x5) or the number of samples (lats:3). amc-stop:15 is amc:15 that ends at its first success, as the
tree searches do, and amc-several:15 is amc:15 with particles at its temperature and .2 below and above. The plain loop
gives the results of the agent's graph in half the time. Settings are chosen on training tasks from `TUNING` on; value
models are trained on lower numbers, and policies on higher ones.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from amc_agents.bench.methods import (
    AMC,
    AMC_SEVERAL,
    BEST_OF_N,
    LATS,
    SMC,
    STOPPING,
    TREE_OF_THOUGHTS,
    Method,
    Tuned,
    amc_several,
    lats,
    stopping,
    tree_of_thoughts,
)
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.report import measured
from amc_agents.bench.selection import MethodChoice
from amc_agents.bench.statistics import estimate
from amc_agents.bench.tuned import Cell, Setting, cells_of, method_of, read_chosen
from amc_agents.bench.tuning import Grid, choose

TUNING = 100_000
"""Number of the first task for settings."""
MOST_CALLS = 450
"""Policy calls of a LATS search: those of 15 particles in 30 steps."""


def _tree_of_thoughts(tuned: Tuned, size: str) -> Method:
    width, samples = map(int, size.split("x"))
    return tree_of_thoughts(tuned, width=width, samples=samples)


def _lats(tuned: Tuned, size: str) -> Method:
    return lats(tuned, max_calls=MOST_CALLS, samples=int(size))


TREES: dict[str, Callable[[Tuned, str], Method]] = {TREE_OF_THOUGHTS: _tree_of_thoughts, LATS: _lats}


def tune(options: argparse.Namespace) -> None:
    """Choose the settings of Best-of-N, SMC and AMC on training tasks."""
    plan = plan_of(options, split="train", first=TUNING)

    def score(settings: Sequence[Setting]) -> list[Cell]:
        tried = replace(plan, methods=tuple(method_of(*setting) for setting in settings))
        cells = cells_of(settings, run_plan(tried, options.out / "runs", resume=True, n_concurrent=2))
        for cell in cells:
            print(cell.name, {name: round(value.mean, 3) for name, value in cell.scores.items()}, flush=True)
        return cells

    few, many = tuple(range(6, plan.horizon, 6)), tuple(range(2, plan.horizon, 2))
    tuning = choose((BEST_OF_N, SMC, AMC), Grid(tuple(options.temperatures), (few, many), tuple(options.betas)), score)
    settings = {"n_particles": plan.n_particles, "first_task": plan.first, "tasks": plan.n_tasks, "world": plan.world}
    tuning.save(options.out / "tuning.json", shlex.join(sys.argv), {**settings, "critic": plan.critic_spec})


def play(options: argparse.Namespace) -> None:
    """Play tasks by the named methods, a task by all of them before the next."""
    tuned = read_chosen(options.tuned) if options.tuned else {}
    if options.temperature is not None:
        tuned |= {name: Tuned(temperature=options.temperature) for name in (BEST_OF_N, *TREES)}
    plan = plan_of(options, split=options.split, first=TUNING if options.split == "train" else 0)
    plan = replace(plan, methods=tuple(method_named(text, plan, tuned) for text in options.methods))
    records = run_plan(plan, options.out, resume=True, n_concurrent=2)
    for method in plan.methods:
        own = [record for record in records if record.method == method.name]
        scores = {name: measured(own, name) for name in ("oracle", "deployable", "mean")}
        print(method, {name: estimate(values) for name, values in scores.items() if values})


def method_named(text: str, plan: ComparisonPlan, tuned: Mapping[str, Tuned]) -> Method:
    """Return the method of NAME[:N][@CRITIC] with its tuned settings."""
    if STOPPING in text:
        return stopping(method_named(text.replace(STOPPING, "", 1), plan, tuned))
    text, _, critic = text.partition("@")
    name, _, size = text.partition(":")
    if name in TREES:
        return replace(TREES[name](tuned.get(name, Tuned()), size), name=f"{name}-{size}")
    if name == AMC_SEVERAL:
        method = amc_several(tuned[AMC])
    else:
        method = MethodChoice([name], tuned).applied_to(plan)[0].methods[0]
    if size:
        method = replace(method, name=f"{name}-{size}", n_particles=int(size))
    return replace(method, name=f"{method.name}-other", critic=critic) if critic else method


def plan_of(options: argparse.Namespace, *, split: str, first: int) -> ComparisonPlan:
    """Return the plan without methods."""
    seeds = tuple(range(options.first_seed, options.first_seed + options.seeds))
    return ComparisonPlan(
        methods=(), n_tasks=options.tasks, world=options.world, split=split, first=first, critic=options.critic,
        model=options.model, n_particles=options.particles, seeds=seeds, plain=True,
    )  # fmt: skip


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["tune", "play"])
    parser.add_argument("world")
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", nargs="+", default=[BEST_OF_N])
    parser.add_argument("--split", choices=["test", "train"], default="test", help="train: the tasks of `tune`")
    parser.add_argument("--temperature", type=float, help="of Best-of-N and the tree searches")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--particles", type=int, default=15)
    parser.add_argument("--model", help="policy; default: the world's own")
    parser.add_argument("--critic", help="default: the value model of the policy")
    parser.add_argument("--tuned", type=Path, help="tuning.json of `tune`")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 0.7, 1.0])
    parser.add_argument("--betas", type=float, nargs="+", default=[0.1, 0.3])
    options = parser.parse_args()
    (tune if options.command == "tune" else play)(options)


if __name__ == "__main__":
    main()
