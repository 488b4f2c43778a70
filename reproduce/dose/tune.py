"""Choose each critic's temperature, schedule and beta jointly on training tasks, and the temperature of its Best-of-N.

    python reproduce/dose/tune.py WORLD [CRITIC ...] [--times 3]

Successive halving over `doses.GRID`; Best-of-N draws from the same temperatures, on all tuning tasks. The choice and
all scores are written to reproduce/dose/chosen.json. The command resumes.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.files import replace_file
from reproduce.dose.doses import (
    GRID,
    HIDDEN,
    LEVELS,
    MODELS,
    ROUNDS,
    TEMPERATURES,
    THIRD,
    TRAINED_ON,
    WORLDS,
    N,
    Setting,
    tasks_of,
)
from reproduce.dose.playing import play, read_particles
from reproduce.study.subsampling import best_of

CHOSEN = Path("reproduce/dose/chosen.json")
Scores = Mapping[tuple[str, str], Mapping[str, float]]
"""(critic, setting) -> task -> merit."""


def critics_of(name: str) -> tuple[str, ...]:
    """Return the levels and the value models of a world; of the levels, only the oracle in the fifth plan."""
    levels = LEVELS[:1] if name in (*TRAINED_ON, THIRD) else LEVELS
    return (*(level.name for level in levels), *(critic for of, critic in MODELS if of == name))


def metric_of(name: str) -> str:
    """What a world is measured by: the pick by the critic where rewards are hidden, the pick by reward elsewhere."""
    return "deployable" if name in HIDDEN else "oracle"


def scores_of(lines: Sequence[Mapping[str, Any]], metric: str) -> Scores:
    """Score the runs, and Best-of-N from the pools; a tenth of the mean particle breaks ties."""
    scores: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in lines:
        of = line if "mean" in line else best_of(read_particles(line), N, draws=1)
        scores[line["critic"], line["setting"]][line["task"]] = of[metric] + 0.1 * of["mean"]
    return scores


def best(scores: Scores, critic: str, settings: Sequence[str], tasks: Sequence[str], kept: int) -> list[str]:
    """Return the best settings of a critic on the tasks, the best first."""
    merit = {name: np.mean([scores[critic, name][task] for task in tasks]) for name in settings}
    return sorted(merit, key=lambda name: -merit[name])[:kept]


def tune(name: str, critics: Sequence[str], times: int) -> None:
    """Tune all critics side by side, so that they share draws, on `times` as many tasks as ROUNDS says."""
    metric, of_name = metric_of(name), {setting.name: setting for setting in GRID}
    left: dict[str, list[str]] = {critic: list(of_name) for critic in critics}
    for n_tasks, kept in ROUNDS[name]:
        tasks = tasks_of(name, "tune", n_tasks * times)
        runs = [(critic, of_name[setting]) for critic in critics for setting in left[critic]]
        scores = scores_of(play(name, "tune", 0, tasks, runs, dict.fromkeys(TEMPERATURES, critics)), metric)
        ids = [task.id for task in tasks]
        left = {critic: best(scores, critic, left[critic], ids, kept) for critic in critics}
    pools = [f"pool_T{heat:g}" for heat in TEMPERATURES]
    table = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    for critic in critics:
        tried = {
            setting: {"merit": round(float(np.mean(list(of.values()))), 4), "tasks": len(of)}
            for (judge, setting), of in sorted(scores.items())
            if judge == critic
        }
        chosen = {"amc": left[critic][0], "best_of": best(scores, critic, pools, ids, 1)[0], "tried": tried}
        table.setdefault(name, {})[critic] = chosen
        print(name, critic, chosen["amc"], chosen["best_of"], flush=True)
    replace_file(CHOSEN, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode())


def chosen(name: str, critic: str) -> tuple[Setting, float]:
    """Return a critic's setting of AMC and its temperature of Best-of-N."""
    of = json.loads(CHOSEN.read_text(encoding="utf-8"))[name][critic]
    return next(each for each in GRID if each.name == of["amc"]), float(of["best_of"].removeprefix("pool_T"))


def main() -> None:
    """Tune the named critics, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("critics", nargs="*")
    parser.add_argument("--times", type=int, default=1, help="multiplies the training tasks of each round")
    options = parser.parse_args()
    tune(options.world, options.critics or critics_of(options.world), options.times)


if __name__ == "__main__":
    main()
