"""Chooses each method's temperature, resampling steps and beta, on training tasks that no model was trained on.

    python reproduce/crafting/tune.py [--tasks 60] [--seeds 1] [--particles 15] [--band 9 14] [--full]
        [--temperatures 0.4 0.6 0.8 1 1.2] [--world crafting] [--first 500000]

One setting at a time: temperature first (from two starts), then the steps, then beta (by means, and by eq. 5:
`success_reward`), each with the best of the others so far; `--full` tries every combination of the first three. A
setting is as good as the average of its oracle's pick (where rewards are hidden: its deployable pick) and its top 5,
for every method alike; on a tie the mean particle decides. RAW keeps every run: an interrupted tuning goes on where it
was. What is chosen goes into amc_agents/bench/crafting.py by hand, and the whole table to
docs/results/crafting-tuning.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar

from amc_agents.bench import crafting, methods
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import CRAFTING, Plan
from amc_agents.bench.records import Record
from amc_agents.bench.report import measured
from amc_agents.bench.runner import predicts_return, steered_blindly
from amc_agents.bench.statistics import estimate
from amc_agents.bench.workers import run_plan
from amc_agents.cli.compare import available_cpus
from amc_agents.critics.spec import parse_critic

FIRST_TASK = 500_000
"""Training tasks from here on are used for nothing else."""
TEMPERATURES = (0.4, 0.6, 0.8, 1.0, 1.2)
STEPS = ((4, 8, 12), (4, 8), (6, 12), (8,), (8, 12), (3, 6, 9, 12, 15))
BETAS = (0.05, 0.1, 0.2)
SOFT_BETAS = (0.2, 0.4)
SUCCESS = 1.0
"""What success pays, in the crafting worlds."""
STARTS = (Tuned(steps=(4, 8, 12), beta=0.1), Tuned(steps=(3, 6, 9, 12, 15), beta=0.05))
"""Two, for they like other temperatures: the greedier one earns more where particles differ more."""
MAKERS: dict[str, Callable[[Tuned], Method]] = {
    methods.REACT: methods.react,
    methods.BEST_OF_N: methods.best_of_n,
    methods.SMC: methods.smc,
    methods.AMC: methods.amc,
    methods.AMC_HIDDEN: methods.amc_hidden,
}
RESAMPLED = (methods.SMC, methods.AMC, methods.AMC_HIDDEN)

Cell = dict[str, Any]
"""One setting of one method, with its scores."""
Score = Callable[[Sequence[tuple[str, Tuned]]], list[Cell]]
"""Runs settings and scores them."""


def stages(name: str, tried: Sequence[float]) -> list[Callable[[Tuned], list[Tuned]]]:
    """What to try of a method, one setting after the other, from the best so far; `tried` are the temperatures."""

    def temperatures(best: Tuned) -> list[Tuned]:
        return [replace(best, temperature=one) for one in tried]

    def steps(best: Tuned) -> list[Tuned]:
        return [replace(best, steps=one) for one in STEPS]

    def betas(best: Tuned) -> list[Tuned]:
        means = [replace(best, beta=one) for one in BETAS]
        soft = [replace(best, beta=one, success_reward=SUCCESS) for one in SOFT_BETAS]
        return means if name == methods.SMC else means + soft

    return [temperatures, steps, betas] if name in RESAMPLED else [temperatures]


def cell_name(name: str, tuned: Tuned) -> str:
    """A setting's name in the raw results."""
    if name not in RESAMPLED:
        return f"{name} T={tuned.temperature}"
    soft = " soft" if tuned.success_reward else ""
    return f"{name} T={tuned.temperature} at={'-'.join(map(str, tuned.steps))} beta={tuned.beta}{soft}"


def as_cell(name: str, tuned: Tuned, records: Sequence[Record]) -> Cell:
    """A setting's scores, with standard errors over tasks."""
    scores = {}
    for metric in ("oracle", "deployable", "top5", "mean", "mean_distinct"):
        values = measured(records, metric)
        if values:
            scores[metric] = estimate(values)._asdict()
    return {"method": name, **asdict(tuned), "scores": scores}


def better(cell: Cell) -> tuple[float, float]:
    """What the best cell has most of: the pick and the top 5 alike, for at 40 tasks the pick alone is mostly noise."""
    metric = "deployable" if cell["method"] == methods.AMC_HIDDEN else "oracle"
    scores = cell["scores"]
    return (scores[metric]["mean"] + scores["top5"]["mean"]) / 2, scores["mean"]["mean"]


def tuned_of(cell: Cell) -> Tuned:
    """A cell's setting."""
    return Tuned(cell["temperature"], tuple(cell["steps"]), cell["beta"], cell["success_reward"])


def choose(
    names: Sequence[str], full: bool, score: Score, temperatures: Sequence[float] = TEMPERATURES
) -> tuple[list[Cell], dict[str, Cell]]:
    """Every cell that was tried, and the best of each method."""
    tried: dict[str, Cell] = {}
    best: dict[str, Cell] = {}
    starts = {name: STARTS if name in RESAMPLED else (replace(STARTS[0], steps=()),) for name in names}
    for stage in range(1 if full else 3):
        wanted: list[tuple[str, Tuned]] = []
        for name in names:
            so_far = (tuned_of(best[name]),) if name in best else starts[name]
            steps_of_tuning = stages(name, temperatures)
            if full and name in RESAMPLED:
                wanted += [(name, Tuned(*one)) for one in product(temperatures, STEPS, BETAS)]
            elif stage < len(steps_of_tuning):
                wanted += [(name, cell) for one in so_far for cell in steps_of_tuning[stage](one)]
        for cell in score(wanted):
            tried[cell_name(cell["method"], tuned_of(cell))] = cell
        for name in names:
            best[name] = max((cell for cell in tried.values() if cell["method"] == name), key=better)
    return list(tried.values()), best


def main() -> None:
    """Tunes, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--particles", type=int, default=15)
    parser.add_argument("--band", type=int, nargs=2, default=list(crafting.BAND), metavar=("LEAST", "MOST"))
    parser.add_argument("--methods", nargs="+", choices=list(MAKERS), default=list(MAKERS))
    parser.add_argument("--critic", help="default: the value model beside the policy")
    parser.add_argument("--model", default="crafting", help="the policy: a shipped one's name, or a folder")
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    parser.add_argument("--world", default=CRAFTING, help="its name, as amc bench takes it")
    parser.add_argument("--first", type=int, default=FIRST_TASK, help="number of the first training task")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--full", action="store_true", help="every combination")
    parser.add_argument("--raw", type=Path, default=Path("runs/tuning"), help="where every run is kept")
    parser.add_argument("--out", type=Path, default=Path("docs/results/crafting-tuning.json"))
    options = parser.parse_args()
    console = Console()
    low, high = options.band
    plan = Plan(
        methods=(), n_tasks=options.tasks, world=options.world, band=(low, high) if options.world == CRAFTING else None,
        split="train", first=options.first, seeds=tuple(range(options.seeds)), n_particles=options.particles,
        critic=options.critic, model=options.model, plain=True,
    )  # fmt: skip
    critic = parse_critic(plan.critic_spec)
    told = predicts_return(critic)
    names = [name for name in options.methods if told or not steered_blindly(MAKERS[name](STARTS[0]))]

    def score(cells: Sequence[tuple[str, Tuned]]) -> list[Cell]:
        wanted = tuple(replace(MAKERS[name](tuned), name=cell_name(name, tuned)) for name, tuned in cells)
        with Bar(console=console) as bar:
            line = bar.add_task(f"{len(cells)} settings", total=len(cells) * options.tasks * options.seeds)
            records = run_plan(
                replace(plan, methods=wanted), options.raw, resume=True, n_workers=options.workers,
                progress=lambda done: bar.update(line, completed=done),
            )  # fmt: skip
        return [
            as_cell(name, tuned, [record for record in records if record.method == cell_name(name, tuned)])
            for name, tuned in cells
        ]

    tried, best = choose(names, options.full, score, options.temperatures)
    for name, cell in best.items():
        console.print(f"{name}: {tuned_of(cell)} -> {better(cell)[0]:.3f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "command": " ".join(["python", *sys.argv]),
        "settings": {
            "n_particles": options.particles,
            "split": plan.split,
            "first_task": options.first,
            "tasks": options.tasks,
            "world": options.world,
            "band": plan.band,
            "seeds": options.seeds,
            "critic": plan.critic_spec,
        },
        "chosen": best,
        "cells": tried,
    }
    options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    console.print(f"-> {options.out}")


if __name__ == "__main__":
    main()
