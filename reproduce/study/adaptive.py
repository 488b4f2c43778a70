"""Adaptive numbers of particles in the middle band at tuned temperatures: choose settings, and run the held-out tasks.

    python reproduce/study/adaptive.py tune    # on 150 training tasks
    python reproduce/study/adaptive.py run --tasks 250    # on the study's held-out tasks, with the chosen settings
    python reproduce/study/adaptive.py run --rules 4..16 4..8    # with these rules only

Both resume what was interrupted. Runs are packed into docs/results/adaptive/raw. `adaptive_latency.py` measures
latency, and `adaptive_report.py` writes the tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench import methods
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.records import RunResult
from amc_agents.files import replace_file
from amc_agents.smc import Adaptive
from reproduce.study.packed import pack
from reproduce.study.settings import BANDS, N_TASKS, SHIPPED, TUNED, critic_of, policy_of

OUT = Path("docs/results/adaptive")
RUNS = Path("runs/adaptive")
CHOSEN = OUT / "tuning.json"
BAND = "middle"
N_TRAINING, FIRST = 150, 500_000
"""Training tasks: the 60 with which the study chose its settings, and 90 more."""
SUCCESS = 1.0
RULE = Adaptive(start=4, most=32)
TEMPERATURES = (0.4, 0.5, 0.6, 0.8)
STEPS = ((4, 8, 12), (8, 12), (8,))
BETA = 0.4
"""The best value under eq. 5 in the study's tuning of this band."""
RULES = (RULE, Adaptive(2, 32), Adaptive(4, 16), Adaptive(4, 8))
"""The rules of the curve, in order of importance."""


def adaptive_amc(tuned: Tuned, rule: Adaptive = RULE) -> Method:
    """Return AMC with this rule; rewards are seen, and a success is declared."""
    method = replace(methods.amc(tuned), n_particles=rule)
    return replace(method, name=f"amc {rule} {_text(tuned)}", label=f"AMC, {rule}")


def adaptive_best_of_n(tuned: Tuned, rule: Adaptive = RULE) -> Method:
    """Return Best-of-N with the same rule, in rounds of independent particles; rewards are seen."""
    method = replace(methods.best_of_n(tuned), n_particles=rule, success_reward=SUCCESS, hide_rewards=False)
    return replace(method, name=f"best-of-n {rule} {_text(tuned)}", label=f"Best-of-N, {rule}", critic="uniform")


def hidden(method: Method) -> Method:
    """Return the method without rewards: the critic's final values decide."""
    return replace(method, name=f"{method.name} hidden", hide_rewards=True, critic=None)


def plan(of: Sequence[Method], *, split: str, n_tasks: int | None = None) -> ComparisonPlan:
    """Return the comparison of methods on training or held-out tasks."""
    training = split == "train"
    return ComparisonPlan(
        methods=tuple(of),
        n_tasks=n_tasks or (N_TRAINING if training else N_TASKS[BAND]),
        first=FIRST if training else 0,
        split=split,
        band=BANDS[BAND],
        critic=critic_of(SHIPPED, 0, TUNED),
        model=policy_of(SHIPPED),
        plain=True,
    )


def run(of: Sequence[Method], *, split: str) -> list[RunResult]:
    """Run methods in this process; each has a folder of its own, which is resumed."""
    records = []
    for method in of:
        folder = RUNS / split / method.name.replace(" ", "_")
        records += run_plan(plan([method], split=split), folder, resume=True, n_concurrent=1)
        print(describe(method.name, records), flush=True)
    return records


def describe(name: str, records: Sequence[RunResult]) -> str:
    """Return a line with the score and the policy calls of a method."""
    mine = [record for record in records if record.method == name]
    score, calls = _means(mine)
    return f"{name}: {score:.3f}, {calls:.1f} policy calls ({len(mine)} tasks)"


def tune() -> None:
    """Choose the temperature, then the steps: the highest score, and among equal scores the fewest policy calls."""
    cells: dict[str, dict[str, Any]] = {}
    chosen = {}
    for name, make, start in (
        ("amc", adaptive_amc, Tuned(0.6, STEPS[0], BETA, SUCCESS)),
        ("best-of-n", adaptive_best_of_n, Tuned(0.6, (), 0.1)),
    ):
        best = start
        stages: list[list[Tuned]] = [[replace(best, temperature=each) for each in TEMPERATURES]]
        for stage in range(2 if name == "amc" else 1):
            if stage:
                stages.append([replace(best, steps=each) for each in STEPS])
            for tuned in stages[stage]:
                records = run([make(tuned)], split="train")
                score, calls = _means(records)
                cells[f"{name} {_text(tuned)}"] = {"method": name, "score": score, "policy_calls": calls}
            best = max(
                stages[stage],
                key=lambda tuned: (
                    cells[f"{name} {_text(tuned)}"]["score"],
                    -cells[f"{name} {_text(tuned)}"]["policy_calls"],
                ),
            )
        chosen[name] = {
            "temperature": best.temperature, "steps": list(best.steps), "beta": best.beta,
            "success_reward": best.success_reward,
        }  # fmt: skip
    settings = {"rule": str(RULE), "tasks": N_TRAINING, "first_task": FIRST, "split": "train", "band": BANDS[BAND]}
    OUT.mkdir(parents=True, exist_ok=True)
    replace_file(CHOSEN, json.dumps({"settings": settings, "chosen": chosen, "cells": cells}, indent=1) + "\n")


def chosen() -> dict[str, Tuned]:
    """Return the chosen settings."""
    plain = json.loads(CHOSEN.read_text(encoding="utf-8"))["chosen"]
    return {name: Tuned(**{**values, "steps": tuple(values["steps"])}) for name, values in plain.items()}


def held_out() -> list[tuple[Method, Method]]:
    """List AMC and Best-of-N for each rule: that of the tuning, then others, then without rewards."""
    amc, best_of_n = chosen()["amc"], chosen()["best-of-n"]
    pairs = [(adaptive_amc(amc, rule), adaptive_best_of_n(best_of_n, rule)) for rule in RULES]
    blind = hidden(adaptive_amc(amc)), hidden(adaptive_best_of_n(replace(best_of_n, beta=amc.beta)))
    return [*pairs[:2], blind, *pairs[2:]]


def main() -> None:
    """Tune, or run the held-out tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "run"])
    parser.add_argument("--tasks", type=int, default=N_TASKS[BAND], help="number of held-out tasks")
    parser.add_argument("--pairs", type=int, default=len(RULES) + 1, help="number of rules")
    parser.add_argument("--rules", nargs="+", choices=[*map(str, RULES)], help="run only these, with rewards seen")
    options = parser.parse_args()
    if options.what == "tune":
        return tune()
    for pair in _with_rules(options.rules) if options.rules else held_out()[: options.pairs]:
        run_pair(pair, options.tasks)


def _with_rules(rules: Sequence[str]) -> list[tuple[Method, Method]]:
    return [pair for pair in held_out() if str(pair[0].n_particles) in rules and not pair[0].hide_rewards]


def run_pair(pair: tuple[Method, Method], n_tasks: int) -> None:
    """Run two methods task by task, so that an interruption leaves both with the same tasks, and pack their runs."""
    compared = plan(pair, split="test", n_tasks=n_tasks)
    folder = RUNS / "test" / pair[0].name.replace(" ", "_")
    records = run_plan(compared, folder, resume=True, n_concurrent=1)
    comparison = compared.comparison()
    for method in pair:
        mine = [record for record in records if record.method == method.name]
        settings = {"settings": comparison.settings, "methods": {method.name: comparison.method_settings[method.name]}}
        pack(method.name.replace(" ", "_"), settings, mine, OUT / "raw")
        print(describe(method.name, mine), flush=True)


def _means(records: Sequence[RunResult]) -> tuple[float, float]:
    return (
        float(np.mean([record.scores.oracle for record in records])),
        float(np.mean([record.cost.policy_calls for record in records])),
    )


def _text(tuned: Tuned) -> str:
    steps = f" at={'-'.join(map(str, tuned.steps))} beta={tuned.beta:g}" if tuned.steps else ""
    return f"T={tuned.temperature:g}{steps}"


if __name__ == "__main__":
    main()
