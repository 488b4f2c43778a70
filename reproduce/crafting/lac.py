"""The comparison of LAC with what it is made of, in the crafting world: tuned on training tasks, run on test tasks.

    python reproduce/crafting/lac.py [--tasks 200] [--seeds 3] [--bands 9-14 12-16] [--decision-critic SPEC]

For every band of difficulty: first the temperature of each method, and the alpha of LAC, on training tasks that no
model was trained on (every combination; the best mean return, on a tie the first); then ReAct, vote, LAC, its
ablations, the paper's alphas and a perfect critic as an upper bound, on test tasks. RAW keeps every run: what was
interrupted goes on where it was. RESULTS gets `tuning.json` with every setting that was tried, and for each band what
`amc bench` writes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar

from amc_agents.bench import crafting, decision_report, methods, report
from amc_agents.bench.decisions import read_decisions
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.records import Record
from amc_agents.bench.statistics import estimate
from amc_agents.bench.workers import run_plan
from amc_agents.cli.compare import available_cpus

FIRST_TASK = 700_000
"""Training tasks from here on are used for nothing else."""
TEMPERATURES = (0.4, 0.6, 0.8, 1.0)
ALPHAS = (0.5, 1.0, 2.0, 5.0)
VARIANTS = (methods.LAC, methods.LAC_GREEDY, methods.CRITIC_ONLY, methods.LAC_ORACLE, methods.LAC_ORACLE_GREEDY)
"""Those of LAC that are tuned on their own; the others are run at LAC's setting."""

Band = tuple[int, int]
Maker = Callable[[Tuned], Method]
Run = Callable[[Sequence[Method]], list[Record]]
"""Methods -> their records."""


def makers(critic: str | None, k: int) -> dict[str, Maker]:
    """The methods that are tuned, each made from what is chosen for it."""

    def variant(name: str, tuned: Tuned) -> Method:
        found = methods.lac_variants(tuned, critic=critic, oracle=crafting.ORACLE, k=k)
        return next(one for one in found if one.name == name)

    return {
        methods.REACT: methods.react,
        methods.VOTE: partial(methods.vote, k=k),
        methods.VOTE_GREEDY: partial(methods.vote, k=k, greedy=True),
        **{name: partial(variant, name) for name in VARIANTS},
    }


def grid(name: str) -> list[Tuned]:
    """What is tried of a method."""
    alphas = ALPHAS if name in (methods.LAC, methods.LAC_GREEDY) else (1.0,)
    return [Tuned(temperature=temperature, alpha=alpha) for temperature in TEMPERATURES for alpha in alphas]


def tune(run: Run, made: dict[str, Maker], band: Band) -> tuple[dict[str, Tuned], list[dict[str, Any]]]:
    """The best setting of each method, and all that were tried."""
    cells = {f"{name} T={one.temperature} alpha={one.alpha}": (name, one) for name in made for one in grid(name)}
    tried = [replace(made[name](one), name=cell) for cell, (name, one) in cells.items()]
    records = run(tried)
    # A single trajectory's return, seen by whoever tunes; the perfect critic's is not deployable.
    scores = {
        cell: estimate(report.measured([one for one in records if one.method == cell], "oracle")) for cell in cells
    }
    chosen = {
        name: max((cell for cell in cells if cells[cell][0] == name), key=lambda cell: scores[cell].mean)
        for name in made
    }
    table = [
        {"band": list(band), "method": name, "temperature": one.temperature, "alpha": one.alpha,
         "chosen": chosen[name] == cell, **scores[cell]._asdict()}
        for cell, (name, one) in cells.items()
    ]  # fmt: skip
    return {name: cells[cell][1] for name, cell in chosen.items()}, table


def compared(made: dict[str, Maker], tuned: dict[str, Tuned], critic: str | None, k: int) -> list[Method]:
    """The methods of the comparison: the tuned ones, and the variants of LAC at LAC's own setting."""
    best = {name: make(tuned[name]) for name, make in made.items()}
    variants = methods.lac_variants(tuned[methods.LAC], critic=critic, oracle=crafting.ORACLE, k=k)
    alone = [best[methods.REACT], methods.react_greedy(), best[methods.VOTE], best[methods.VOTE_GREEDY]]
    return [*alone, *(best.get(one.name, one) for one in variants)]


def publish(folder: Path, raw: Path, plan: crafting.Plan, records: Sequence[Record]) -> None:
    """What `amc bench` writes of a comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    results = report.summarise(records, plan.methods, plan.comparison().settings, command=_command())
    results.save(folder / "results.json")
    (folder / "results.md").write_text(report.markdown(results), encoding="utf-8")
    labels = {method.name: method.label for method in plan.methods}
    (folder / "decisions.md").write_text(decision_report.markdown(read_decisions(raw), labels), encoding="utf-8")


def main() -> None:
    """Tunes and compares, band by band."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuning-tasks", type=int, default=60)
    parser.add_argument("--bands", nargs="+", default=["9-14", "12-16"], metavar="LEAST-MOST")
    parser.add_argument("--decision-critic", help="default: the value model beside the policy")
    parser.add_argument("--candidates", type=int, default=5, help="K")
    parser.add_argument("--model", default="crafting", help="the policy: a shipped one's name, or a folder")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--raw", type=Path, default=Path("runs/lac"), help="where every run is kept")
    parser.add_argument("--results", type=Path, default=Path("docs/results/crafting-lac"))
    options = parser.parse_args()
    console = Console()
    made = makers(options.decision_critic, options.candidates)
    tables: list[dict[str, Any]] = []
    for band in [(int(least), int(most)) for least, most in (one.split("-") for one in options.bands)]:
        name = f"{band[0]}-{band[1]}"
        training = crafting.Plan(
            methods=(), n_tasks=options.tuning_tasks, band=band, split="train", first=FIRST_TASK, model=options.model
        )

        def run(tried: Sequence[Method], plan: crafting.Plan = training, name: str = name) -> list[Record]:
            return _run(replace(plan, methods=tuple(tried)), options, f"{name}-train", console)

        tuned, table = tune(run, made, band)
        tables += table
        options.results.mkdir(parents=True, exist_ok=True)
        told = {"command": _command(), "split": "train", "first_task": FIRST_TASK, "cells": tables}
        (options.results / "tuning.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        console.print(f"{name}: chosen {tuned}")

        wanted = compared(made, tuned, options.decision_critic, options.candidates)
        plan = crafting.Plan(
            methods=tuple(wanted), n_tasks=options.tasks, band=band, seeds=tuple(range(options.seeds)),
            model=options.model,
        )  # fmt: skip
        records = _run(plan, options, f"{name}-test", console)
        publish(options.results / name, options.raw / f"{name}-test", plan, records)
        console.print((options.results / name / "results.md").read_text(), markup=False)


def _run(plan: crafting.Plan, options: argparse.Namespace, name: str, console: Console) -> list[Record]:
    with Bar(console=console) as bar:
        line = bar.add_task(name, total=len(plan.methods) * plan.n_tasks * len(plan.seeds))
        return run_plan(
            plan, options.raw / name, resume=True, n_workers=options.workers, keep_decisions=plan.split == "test",
            progress=lambda done: bar.update(line, completed=done),
        )  # fmt: skip


def _command() -> str:
    return " ".join(["python", *sys.argv])


if __name__ == "__main__":
    main()
