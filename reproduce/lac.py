"""Compare LAC with its parts in any world: tuned on training tasks, run on test tasks.

    python reproduce/lac.py [--world crafting] [--decision-critic SPEC] [--tasks 200] [--first 0] [--seeds 3]
        [--bands 9-14 12-16] [--temperatures 0.4 0.6 0.8 1.0] [--alphas 0.5 1 2 5] [--candidates 5] [--tune-on return]

First it tunes the temperature of each method, K of methods that decide, and LAC's alpha, on training tasks that no
model was trained on: every combination, by the mean of --tune-on; the first of equals wins. Then it runs ReAct, vote,
LAC, its ablations, the paper's alphas, and a perfect critic if the world has one, on test tasks. In the crafting world
it does so for every band of difficulty. RAW keeps every run, so that an interrupted comparison resumes. RESULTS gets
`tuning.json` with every setting tried, and for each band the files of `amc bench`.
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
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import CRAFTING, ComparisonPlan, run_plan
from amc_agents.bench.records import RunResult
from amc_agents.bench.run_files import read_decisions
from amc_agents.bench.statistics import estimate
from amc_agents.cli.shared_options import available_cpus
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError

FIRST_TRAINING_TASK = 700_000
"""First of the training tasks that serve no other purpose."""
TEMPERATURES = (0.4, 0.6, 0.8, 1.0)
ALPHAS = (0.5, 1.0, 2.0, 5.0)
BANDS = ("9-14", "12-16")
VARIANTS = (
    methods.LAC, methods.LAC_GREEDY, methods.CRITIC_ONLY, methods.LAC_ORACLE, methods.LAC_ORACLE_GREEDY,
    methods.VOTE_LIST, methods.LAC_LIST, methods.LAC_LIST_ORACLE,
)  # fmt: skip
"""Methods that are tuned separately; the others use LAC's settings."""
ALWAYS = (methods.REACT, methods.VOTE, methods.VOTE_GREEDY, methods.LAC)
"""Methods that are always tuned: others use their settings, or are compared with them."""
WITH_ALPHA = (methods.LAC, methods.LAC_GREEDY, methods.LAC_LIST)
"""Methods whose alpha is tuned."""
TUNED_ON = {"return": "oracle", "success": "success"}
"""Value of --tune-on -> metric of a single trajectory."""

Maker = Callable[[Tuned], Method]
Grid = Callable[[str], list[Tuned]]
"""Name of a method -> the settings to try."""
Run = Callable[[Sequence[Method]], list[RunResult]]
"""Methods -> their records."""


def variants(tuned: Tuned, spec: WorldSpec, critic: str | None) -> list[Method]:
    """List all variants of LAC that the world allows."""
    listed = methods.listed_variants(tuned, critic=critic, oracle=spec.oracle) if spec.actions else []
    return [*methods.lac_variants(tuned, critic=critic, oracle=spec.oracle), *listed]


def makers(spec: WorldSpec, critic: str | None) -> dict[str, Maker]:
    """Return the methods to tune: name -> function that builds the method from its settings."""

    def variant(name: str, tuned: Tuned) -> Method:
        return next(method for method in variants(tuned, spec, critic) if method.name == name)

    known = [method.name for method in variants(Tuned(), spec, critic)]
    return {
        methods.REACT: methods.react,
        methods.VOTE: methods.vote,
        methods.VOTE_GREEDY: partial(methods.vote, greedy=True),
        **{name: partial(variant, name) for name in VARIANTS if name in known},
    }


def grid(options: argparse.Namespace) -> Grid:
    """Return a function that lists every combination of the command line's values for a method."""

    def settings_of(name: str) -> list[Tuned]:
        alphas = options.alphas if name in WITH_ALPHA else [1.0]
        sizes = [1] if name == methods.REACT else options.candidates
        every = product(options.temperatures, alphas, sizes)
        return [Tuned(temperature=temperature, alpha=alpha, k=k) for temperature, alpha, k in every]

    return settings_of


def tune(
    run: Run, makers_of: dict[str, Maker], settings_of: Grid, metric: str
) -> tuple[dict[str, Tuned], list[dict[str, Any]]]:
    """Return the best settings of each method, and a table of all settings tried."""
    cells = {_cell(name, tuned): (name, tuned) for name in makers_of for tuned in settings_of(name)}
    records = run([replace(makers_of[name](tuned), name=cell) for cell, (name, tuned) in cells.items()])
    records_of = {cell: [record for record in records if record.method == cell] for cell in cells}
    scores = {
        cell: {label: estimate(report.measured(each, of)) for label, of in TUNED_ON.items()}
        for cell, each in records_of.items()
    }
    chosen = {
        name: max((cell for cell in cells if cells[cell][0] == name), key=lambda cell: scores[cell][metric].mean)
        for name in makers_of
    }
    table = [
        {"method": name, "temperature": tuned.temperature, "alpha": tuned.alpha, "k": tuned.k,
         "chosen": chosen[name] == cell, **{label: score._asdict() for label, score in scores[cell].items()}}
        for cell, (name, tuned) in cells.items()
    ]  # fmt: skip
    return {name: cells[cell][1] for name, cell in chosen.items()}, table


def compared(makers_of: dict[str, Maker], tuned: dict[str, Tuned], spec: WorldSpec, critic: str | None) -> list[Method]:
    """List the methods to compare: the tuned methods, and the other variants of LAC at LAC's settings."""
    best = {name: make(tuned[name]) for name, make in makers_of.items()}
    alone = [best[methods.REACT], methods.react_greedy(), best[methods.VOTE], best[methods.VOTE_GREEDY]]
    deciding = [best.get(method.name, method) for method in variants(tuned[methods.LAC], spec, critic)]
    return methods.without_critic_first([*alone, *deciding])


def publish(folder: Path, raw: Path, plan: ComparisonPlan, records: Sequence[RunResult], tried: dict[str, int]) -> None:
    """Write the files of `amc bench` for a comparison, with the number of settings tried."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = plan.comparison().settings | {"settings_tried": tried}
    results = report.summarise(records, plan.methods, settings, command=_command())
    results.save(folder / "results.json")
    (folder / "results.md").write_text(report_tables.markdown(results), encoding="utf-8")
    labels = {method.name: method.label for method in plan.methods}
    (folder / "decisions.md").write_text(decision_report.markdown(read_decisions(raw), labels), encoding="utf-8")


def main() -> None:
    """Tune and compare, band by band."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default=CRAFTING, help="name of the world, as in amc bench")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first test task")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuning-tasks", type=int, default=60)
    parser.add_argument("--tune-on", choices=list(TUNED_ON), default="return")
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    parser.add_argument("--alphas", type=float, nargs="+", default=list(ALPHAS))
    parser.add_argument("--candidates", type=int, nargs="+", default=[5], help="K; several values are tuned")
    parser.add_argument(
        "--bands", nargs="+", metavar="LOW-HIGH", help="bands of the crafting world; default: 9-14 12-16"
    )
    parser.add_argument("--methods", nargs="+", help="methods to run on test tasks; default: all")
    parser.add_argument("--decision-critic", help="default: the value model shipped with the policy")
    parser.add_argument("--model", help="policy: name of a shipped model, or a folder; default: the world's")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--raw", type=Path, help="folder of all runs; default: runs/WORLD-lac")
    parser.add_argument("--results", type=Path, help="default: docs/results/WORLD-lac")
    options = parser.parse_args()
    options.raw = options.raw or Path("runs", f"{options.world}-lac")
    options.results = options.results or Path("docs", "results", f"{options.world}-lac")
    tables: list[dict[str, Any]] = []
    for band in options.bands or (BANDS if options.world == CRAFTING else [None]):
        low, high = map(int, band.split("-")) if band else (0, 0)
        limits = (low, high) if band else None
        plan = ComparisonPlan(methods=(), n_tasks=options.tasks, world=options.world, band=limits, model=options.model)
        if options.decision_critic is None and not plan.has_critic:
            raise ConfigurationError(f"the policy {plan.policy} has no value model: name a --decision-critic")
        table = _tuned_and_compared(plan, options, band or options.world)
        tables += [{"band": band, **cell} for cell in table]
        tuning = {"command": _command(), "split": "train", "first_task": FIRST_TRAINING_TASK, "cells": tables}
        (options.results / "tuning.json").write_text(json.dumps(tuning, indent=1) + "\n", encoding="utf-8")


def _tuned_and_compared(plan: ComparisonPlan, options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Tune and compare in a band, write the comparison, and return the settings tried."""
    console = Console()
    spec, critic = plan.world_spec, options.decision_critic
    makers_of = makers(spec, critic)
    if options.methods:
        names = {*ALWAYS, *(member for name in options.methods for member in methods.GROUPS.get(name, (name,)))}
        makers_of = {method: make for method, make in makers_of.items() if method in names}
    training = replace(plan, n_tasks=options.tuning_tasks, split="train", first=FIRST_TRAINING_TASK)

    def run(tried: Sequence[Method]) -> list[RunResult]:
        return _run(replace(training, methods=tuple(tried)), options, f"{name}-train", console)

    tuned, table = tune(run, makers_of, grid(options), options.tune_on)
    console.print(f"{name}: chosen {tuned}")
    chosen = methods.chosen(compared(makers_of, tuned, spec, critic), options.methods)
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
