"""Tune and play methods with the trained ScienceWorld policy, by a plain loop: faster than the agent's graph.

    python reproduce/worlds/find_play.py tune TASKS VALUE FOLDER          # writes FOLDER/tuning.json
    python reproduce/worlds/find_play.py tune-trees TASKS VALUE FOLDER    # then; writes FOLDER/trees.json
    python reproduce/worlds/find_play.py play TASKS VALUE FOLDER METHODS... --tuned FOLDER

TASKS is a file of `amc_agents_scienceworld.find_agent`, and VALUE a critic of `word_value.py`. A method is NAME[:N];
without N it has N = 5. The results call it NAME or NAME-N, and Best-of-N always by its name. The tree searches ask the
critic and end at their first success, and so does amc-stop:N; amc-several:N has particles at the temperature of amc:N
and .2 below and above. Results are stored as `amc bench` stores them, a task by all methods before the next; a second
call goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amc_agents_scienceworld.expert_agent import ScienceWorldById
from amc_agents_scienceworld.find_agent import MAX_TOKENS, MODEL, horizon

from amc_agents.bench.methods import (
    AMC,
    AMC_SEVERAL,
    BEST_OF_N,
    LATS,
    REACT_GREEDY,
    SMC,
    STOPPING,
    TREE_OF_THOUGHTS,
    VOTE,
    Method,
    Tuned,
    amc_several,
    lats,
    react_greedy,
    stopping,
    tree_of_thoughts,
    vote,
)
from amc_agents.bench.own.tasks import read_tasks
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.records import RunResult
from amc_agents.bench.runner import Comparison, compare
from amc_agents.bench.statistics import estimate
from amc_agents.bench.tuned import Cell, Setting, cells_of, method_of, read_chosen
from amc_agents.bench.tuning import Grid, choose
from amc_agents.files import replace_file
from amc_agents.models.embedded import EmbeddedChatModel
from reproduce.worlds.word_value import WordValue

N = 5
CONCURRENT = 2
"""Tasks at the same time: the worlds of more may not fit into the JVM."""
TRIED = Grid(
    temperatures=(0.5, 0.7, 0.9),
    steps=((4, 8, 12), (3, 6, 9, 12, 15), (8, 11, 14, 17)),
    betas=(0.05, 0.1),
)
CALLS = 200
"""Policy calls of LATS at most: those of 10 particles, which Tree of Thoughts may also make."""
TREES = {
    TREE_OF_THOUGHTS: [{"width": 2, "samples": 5}, {"width": 3, "samples": 3}, {"width": 5, "samples": 2}],
    LATS: [{"samples": 2}, {"samples": 3}, {"samples": 5}],
}
"""Settings of the tree searches to try."""
SOLVED = 1.0 - 1e-6
"""Returns are sums of floating-point rewards."""


def policy(temperature: float) -> EmbeddedChatModel:
    """Return the shipped policy."""
    return EmbeddedChatModel(model=str(MODEL), temperature=temperature, max_tokens=MAX_TOKENS)


def run(
    tasks: str, value: str, folder: Path, methods: Sequence[Method], seeds: Sequence[int] = (0,)
) -> list[RunResult]:
    """Play every task by every method, and return all results of the folder."""
    comparison = Comparison(
        policy=policy,
        environment=ScienceWorldById,
        agent=plain_text_agent,
        tasks=read_tasks(tasks),
        methods=methods,
        seeds=tuple(seeds),
        critic=WordValue(value),
        n_particles=N,
        horizon=horizon,
        success=SOLVED,
        about={"critic_file": Path(value).name, "tasks": Path(tasks).name},
    )
    return asyncio.run(compare(comparison, folder, resume=True, n_concurrent=CONCURRENT))


def tree(name: str, temperature: float, settings: Mapping[str, int]) -> Method:
    """Return a tree search with settings."""
    tuned = Tuned(temperature=temperature)
    if name == LATS:
        return lats(tuned, max_calls=CALLS, **settings)
    return tree_of_thoughts(tuned, **settings)


def tune(tasks: str, value: str, folder: Path) -> None:
    """Choose the settings of Best-of-N, SMC and AMC."""

    def score(settings: Sequence[Setting]) -> list[Cell]:
        return cells_of(settings, run(tasks, value, folder / "runs", [method_of(*setting) for setting in settings]))

    tuning = choose((BEST_OF_N, SMC, AMC), TRIED, score)
    about = {"n_particles": N, "tasks": Path(tasks).name, "critic": Path(value).name}
    tuning.save(folder / "tuning.json", shlex.join(sys.argv), about)


def tune_trees(tasks: str, value: str, folder: Path) -> None:
    """Choose the settings of the tree searches, at the temperature of Best-of-N."""
    temperature = read_chosen(folder / "tuning.json")[BEST_OF_N].temperature
    cells = [
        {"method": name, "temperature": temperature, "settings": settings}
        for name, choices in TREES.items()
        for settings in choices
    ]
    searches = [tree_of_cell(cell, numbered=str(number)) for number, cell in enumerate(cells)]
    records = run(tasks, value, folder / "trees", searches)
    for cell, method in zip(cells, searches, strict=True):
        cell |= scores([record for record in records if record.method == method.name])
    best = {name: max((cell for cell in cells if cell["method"] == name), key=_merit) for name in TREES}
    replace_file(folder / "trees.json", json.dumps({"chosen": best, "cells": cells}, indent=1) + "\n")


def tree_of_cell(cell: Mapping[str, Any], *, numbered: str = "") -> Method:
    """Return the tree search of a cell of trees.json, with a number after its name."""
    method = tree(cell["method"], cell["temperature"], cell["settings"])
    return replace(method, name=f"{method.name}{numbered}")


def scores(records: Sequence[RunResult]) -> dict[str, float]:
    """Return success, best return and policy calls in the mean."""
    runs: dict[str, list[float]] = {
        "success": [float(run.scores.oracle >= SOLVED) for run in records],
        "best_return": [run.scores.oracle for run in records],
        "policy_calls": [float(run.cost.policy_calls) for run in records],
    }
    return {name: estimate({(str(i), 0): v for i, v in enumerate(values)}).mean for name, values in runs.items()}


def _merit(cell: Mapping[str, Any]) -> tuple[float, float, float]:
    return cell["success"], cell["best_return"], -cell["policy_calls"]


def method_named(text: str, tuned: Path) -> Method:
    """Return the method of NAME[:N] with its tuned settings; greedy play has none, and a vote takes Best-of-N's."""
    if STOPPING in text:
        return stopping(method_named(text.replace(STOPPING, "", 1), tuned), SOLVED)
    name, _, size = text.partition(":")
    chosen = read_chosen(tuned / "tuning.json")
    if name in TREES:
        return tree_of_cell(json.loads((tuned / "trees.json").read_text(encoding="utf-8"))["chosen"][name])
    if name == REACT_GREEDY:
        return react_greedy()
    if name == VOTE:
        return vote(Tuned(temperature=chosen[BEST_OF_N].temperature, k=N))
    shown = name if name == BEST_OF_N or not size else f"{name}-{size}"
    method = amc_several(chosen[AMC]) if name == AMC_SEVERAL else method_of(name, chosen[name])
    return replace(method, name=shown, n_particles=int(size) if size else N)


def play(tasks: str, value: str, folder: Path, names: Sequence[str], tuned: Path, seeds: Sequence[int] = (0,)) -> None:
    """Play every task by the named methods."""
    methods = [method_named(name, tuned) for name in names]
    records = run(tasks, value, folder, methods, seeds)
    for method in methods:
        print(method.name, scores([record for record in records if record.method == method.name]))


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["tune", "tune-trees", "play"])
    parser.add_argument("tasks")
    parser.add_argument("value")
    parser.add_argument("folder", type=Path)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--tuned", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of `play`")
    given = parser.parse_args()
    where = (given.tasks, given.value, given.folder)
    match given.command:
        case "tune":
            tune(*where)
        case "tune-trees":
            tune_trees(*where)
        case _:
            play(*where, given.methods, given.tuned, given.seeds)


if __name__ == "__main__":
    main()
