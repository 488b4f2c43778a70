"""The comparison of LAC with what it is made of, in any world: tuned on training tasks, run on test tasks.

    python reproduce/lac.py [--world crafting] [--decision-critic SPEC] [--tasks 200] [--first 0] [--seeds 3]
        [--bands 9-14 12-16] [--temperatures 0.4 0.6 0.8 1.0] [--alphas 0.5 1 2 5] [--candidates 5] [--tune-on return]

First the temperature of each method, K of those that decide, and LAC's alpha, on training tasks that no model was
trained on (every combination; the best mean of --tune-on, on a tie the first); then ReAct, vote, LAC, its ablations,
the paper's alphas, and a perfect critic as an upper bound where the world has one, on test tasks. In the crafting world
this is done for every band of difficulty. RAW keeps every run: what was interrupted goes on where it was. RESULTS gets
`tuning.json` with every setting that was tried, and for each band what `amc bench` writes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar

from amc_agents.bench import decision_report, methods, report, report_tables
from amc_agents.bench.decisions import read_decisions
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import CRAFTING, ComparisonPlan, run_plan
from amc_agents.bench.records import RunResult
from amc_agents.bench.statistics import estimate
from amc_agents.cli.options import available_cpus
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError

FIRST_TRAINING_TASK = 700_000
"""Training tasks from here on are used for nothing else."""
TEMPERATURES = (0.4, 0.6, 0.8, 1.0)
ALPHAS = (0.5, 1.0, 2.0, 5.0)
BANDS = ("9-14", "12-16")
VARIANTS = (
    methods.LAC, methods.LAC_GREEDY, methods.CRITIC_ONLY, methods.LAC_ORACLE, methods.LAC_ORACLE_GREEDY,
    methods.VOTE_LIST, methods.LAC_LIST, methods.LAC_LIST_ORACLE,
)  # fmt: skip
"""Those that are tuned on their own; the others are run at LAC's setting."""
ALWAYS = (methods.REACT, methods.VOTE, methods.VOTE_GREEDY, methods.LAC)
"""Those that are tuned whatever is compared: the others take their settings, or are held against them."""
WEIGHED = (methods.LAC, methods.LAC_GREEDY, methods.LAC_LIST)
"""Those that alpha is tuned for."""
TUNED_ON = {"return": "oracle", "success": "success"}
"""What can be tuned on -> the metric: a single trajectory's, seen by whoever tunes."""

Maker = Callable[[Tuned], Method]
Grid = Callable[[str], list[Tuned]]
"""A method's name -> the settings that are tried."""
Run = Callable[[Sequence[Method]], list[RunResult]]
"""Methods -> their records."""


def variants(tuned: Tuned, found: WorldSpec, critic: str | None) -> list[Method]:
    """LAC in all its forms that the world allows."""
    listed = methods.listed_variants(tuned, critic=critic, oracle=found.oracle) if found.actions else []
    return [*methods.lac_variants(tuned, critic=critic, oracle=found.oracle), *listed]


def makers(found: WorldSpec, critic: str | None) -> dict[str, Maker]:
    """The methods that are tuned, each made from what is chosen for it."""

    def variant(name: str, tuned: Tuned) -> Method:
        return next(one for one in variants(tuned, found, critic) if one.name == name)

    known = [one.name for one in variants(Tuned(), found, critic)]
    return {
        methods.REACT: methods.react,
        methods.VOTE: methods.vote,
        methods.VOTE_GREEDY: partial(methods.vote, greedy=True),
        **{name: partial(variant, name) for name in VARIANTS if name in known},
    }


def grid(options: argparse.Namespace) -> Grid:
    """Every combination of the command line's values that a method has."""

    def tried(name: str) -> list[Tuned]:
        alphas = options.alphas if name in WEIGHED else [1.0]
        sizes = [1] if name == methods.REACT else options.candidates
        every = product(options.temperatures, alphas, sizes)
        return [Tuned(temperature=temperature, alpha=alpha, k=k) for temperature, alpha, k in every]

    return tried


def tune(
    run: Run, made: dict[str, Maker], tried_of: Grid, metric: str
) -> tuple[dict[str, Tuned], list[dict[str, Any]]]:
    """The best setting of each method, and all that were tried."""
    cells = {_cell(name, one): (name, one) for name in made for one in tried_of(name)}
    records = run([replace(made[name](one), name=cell) for cell, (name, one) in cells.items()])
    of_cell = {cell: [one for one in records if one.method == cell] for cell in cells}
    scores = {
        cell: {told: estimate(report.measured(found, of)) for told, of in TUNED_ON.items()}
        for cell, found in of_cell.items()
    }
    chosen = {
        name: max((cell for cell in cells if cells[cell][0] == name), key=lambda cell: scores[cell][metric].mean)
        for name in made
    }
    table = [
        {"method": name, "temperature": one.temperature, "alpha": one.alpha, "k": one.k, "chosen": chosen[name] == cell,
         **{told: found._asdict() for told, found in scores[cell].items()}}
        for cell, (name, one) in cells.items()
    ]  # fmt: skip
    return {name: cells[cell][1] for name, cell in chosen.items()}, table


def compared(made: dict[str, Maker], tuned: dict[str, Tuned], found: WorldSpec, critic: str | None) -> list[Method]:
    """The methods of the comparison: the tuned ones, and the other forms of LAC at LAC's own setting."""
    best = {name: make(tuned[name]) for name, make in made.items()}
    alone = [best[methods.REACT], methods.react_greedy(), best[methods.VOTE], best[methods.VOTE_GREEDY]]
    decided = [best.get(one.name, one) for one in variants(tuned[methods.LAC], found, critic)]
    return methods.without_critic_first([*alone, *decided])


def publish(folder: Path, raw: Path, plan: ComparisonPlan, records: Sequence[RunResult], tried: dict[str, int]) -> None:
    """What `amc bench` writes of a comparison, and how many settings were tried for it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = plan.comparison().settings | {"settings_tried": tried}
    results = report.summarise(records, plan.methods, settings, command=_command())
    results.save(folder / "results.json")
    (folder / "results.md").write_text(report_tables.markdown(results), encoding="utf-8")
    labels = {method.name: method.label for method in plan.methods}
    (folder / "decisions.md").write_text(decision_report.markdown(read_decisions(raw), labels), encoding="utf-8")


def main() -> None:
    """Tunes and compares, band by band."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default=CRAFTING, help="its name, as amc bench takes it")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first test task")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuning-tasks", type=int, default=60)
    parser.add_argument("--tune-on", choices=list(TUNED_ON), default="return")
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    parser.add_argument("--alphas", type=float, nargs="+", default=list(ALPHAS))
    parser.add_argument("--candidates", type=int, nargs="+", default=[5], help="K; several are tuned over")
    parser.add_argument("--bands", nargs="+", metavar="LEAST-MOST", help="of the crafting world; default: 9-14 12-16")
    parser.add_argument("--methods", nargs="+", help="only these in the comparison on test tasks; default: all")
    parser.add_argument("--decision-critic", help="default: the value model beside the policy")
    parser.add_argument("--model", help="the policy: a shipped one's name, or a folder; default: the world's")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--raw", type=Path, help="where every run is kept; default: runs/WORLD-lac")
    parser.add_argument("--results", type=Path, help="default: docs/results/WORLD-lac")
    options = parser.parse_args()
    options.raw = options.raw or Path("runs", f"{options.world}-lac")
    options.results = options.results or Path("docs", "results", f"{options.world}-lac")
    tables: list[dict[str, Any]] = []
    for band in options.bands or (BANDS if options.world == CRAFTING else [None]):
        least, most = map(int, band.split("-")) if band else (0, 0)
        limits = (least, most) if band else None
        plan = ComparisonPlan(methods=(), n_tasks=options.tasks, world=options.world, band=limits, model=options.model)
        if options.decision_critic is None and not plan.has_critic:
            raise ConfigurationError(f"the policy {plan.policy} has no value model: name a --decision-critic")
        table = _tuned_and_compared(plan, options, band or options.world)
        tables += [{"band": band, **cell} for cell in table]
        told = {"command": _command(), "split": "train", "first_task": FIRST_TRAINING_TASK, "cells": tables}
        (options.results / "tuning.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _tuned_and_compared(plan: ComparisonPlan, options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """One band: the settings that were tried; the comparison is written."""
    console = Console()
    found, critic = plan.world_spec, options.decision_critic
    made = makers(found, critic)
    if options.methods:
        wanted = {*ALWAYS, *(one for name in options.methods for one in methods.GROUPS.get(name, (name,)))}
        made = {method: make for method, make in made.items() if method in wanted}
    training = replace(plan, n_tasks=options.tuning_tasks, split="train", first=FIRST_TRAINING_TASK)

    def run(tried: Sequence[Method]) -> list[RunResult]:
        return _run(replace(training, methods=tuple(tried)), options, f"{name}-train", console)

    tuned, table = tune(run, made, grid(options), options.tune_on)
    console.print(f"{name}: chosen {tuned}")
    chosen = methods.chosen(compared(made, tuned, found, critic), options.methods)
    testing = replace(plan, methods=tuple(chosen), first=options.first, seeds=tuple(range(options.seeds)))
    records = _run(testing, options, f"{name}-test", console)
    folder = options.results if name == options.world else options.results / name
    publish(folder, options.raw / f"{name}-test", testing, records, Counter(cell["method"] for cell in table))
    console.print((folder / "results.md").read_text(), markup=False)
    return table


def _run(plan: ComparisonPlan, options: argparse.Namespace, name: str, console: Console) -> list[RunResult]:
    with Bar(console=console) as bar:
        line = bar.add_task(name, total=len(plan.methods) * plan.n_tasks * len(plan.seeds))
        return run_plan(
            plan, options.raw / name, resume=True, n_workers=options.workers, keep_decisions=plan.split == "test",
            progress=lambda done: bar.update(line, completed=done),
        )  # fmt: skip


def _cell(name: str, tuned: Tuned) -> str:
    return f"{name} T={tuned.temperature} alpha={tuned.alpha} K={tuned.k}"


def _command() -> str:
    return " ".join(["python", *sys.argv])


if __name__ == "__main__":
    main()
