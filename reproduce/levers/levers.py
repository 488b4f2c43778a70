"""What makes a value model rank the particles of a task: data and settings, one changed at a time.

    python reproduce/levers/levers.py train      # collects the data and trains a model per lever and seed; resumes
    python reproduce/levers/levers.py measure    # the AUC of each model within tasks that no model saw; resumes
    python reproduce/levers/levers.py report     # the table of docs/results/levers

Every lever but `more` has 960 trajectories of `crafting-stock-hidden`, played by the shipped policy.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.statistics import estimate, paired
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.envs.registry import world
from amc_agents.files import replace_file
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.embedded.weights import model_folder
from amc_agents.training.collecting import collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.settings import Objective
from amc_agents.training.value.train_value import EMBEDDED, train_value
from amc_agents.types import Task, Trajectory
from reproduce.beyond.filtering import independent
from reproduce.beyond.play import Policy
from reproduce.crafting.branching import Branching
from reproduce.dose.doses import BOTH
from reproduce.dose.draws import Forest
from reproduce.dose.judges import Rollouts, ValueModel
from reproduce.dose.lockstep import Judge, Seat, Together
from reproduce.dose.noise import Level, NoisyPlanner
from reproduce.dose.playing import _Silent, areas, read
from reproduce.levers.ranking_loss import ranking_loss
from reproduce.levers.summed import Summed
from reproduce.levers.taught import Grade, Key, by_planner, by_rollouts, grades_of, targets
from reproduce.levers.td_loss import td_loss

RUNS = Path("runs/levers")
RAW = Path("docs/results/levers/raw/auc.jsonl.gz")
PAGE = RAW.parents[1] / "README.md"
FIRST = {"fit": 500_000, "measure": 600_000}
"""First training tasks, which no other model or experiment uses."""
MEASURED, TRIES, HEAT = 100, 16, 0.7
SEEDS = (0, 1)
N_ROLLOUTS = 8
SHIPPED, BASE, MORE = "shipped", "base", "more"
SUMMED, ROLLOUTS, ORACLE = "summed", "rollouts", "oracle"
ABOUT = {
    SHIPPED: "the shipped model: 2,880 trajectories of three worlds",
    SUMMED: "the base models' log-odds after each action so far, summed: verdicts on the actions",
    ROLLOUTS: f"V^pi by {N_ROLLOUTS} rollouts itself, not a model",
    ORACLE: "the planner's grade itself, not a model",
}
"""Rows that nothing is trained for."""
POLICY = model_folder(str(world(BOTH).model))
GRADES: dict[str, Grade] = {"planner": by_planner, "vpi": by_rollouts(HEAT, N_ROLLOUTS)}


@dataclass(frozen=True)
class Data:
    """How trajectories are collected."""

    tasks: int = 120
    temperature: float = HEAT
    branches: int | None = None
    total: int = 960

    @property
    def name(self) -> str:
        """Names the folder."""
        return f"{self.tasks}-T{self.temperature:g}-{self.branches or 1}-{self.total}"


@dataclass(frozen=True)
class Lever:
    """A change of the recipe."""

    about: str
    data: Data = Data()
    centred: bool = False
    """Targets are returns minus the mean return of their task: only differences within a task remain."""
    ranked: bool = False
    """Cross-entropy plus a pairwise loss of the states of a task at the same step."""
    td: float | None = None
    """lambda of TD(lambda), instead of returns."""
    grades: str | None = None
    """Targets of unfinished states, by `GRADES`."""
    settings: Mapping[str, Any] = field(default_factory=dict)


BCE = Objective(loss="bce", target="return")
LEVERS = {
    BASE: Lever("120 tasks, 8 runs each, temperature .7, cross-entropy"),
    "hot": Lever("temperature 1", Data(temperature=1.0)),
    "branches": Lever("each run split into 4: several continuations of a state", Data(branches=4)),
    "late": Lever("60 tasks, 2 starts each, split into 8", Data(tasks=60, branches=8)),
    "spread": Lever("480 tasks, 2 runs each", Data(tasks=480)),
    "contrast": Lever("30 tasks, 32 runs each", Data(tasks=30)),
    "centred": Lever("squared error of the return minus its task's mean", centred=True),
    "capacity": Lever("LoRA rank 32 instead of 8", settings={"lora_rank": 32, "lora_alpha": 64}),
    "ranking": Lever(
        "a pairwise loss within task and step, added to the cross-entropy", ranked=True, settings={"packing": False}
    ),
    MORE: Lever("four times the data: 480 tasks, 8 runs each", Data(tasks=480, total=3840)),
    "td": Lever("TD(.9) instead of returns", td=0.9, settings={"packing": False}),
    "taught": Lever("the planner's grade of each state as its target, instead of the return", grades="planner"),
    "vpi": Lever(f"V^pi of each state by {N_ROLLOUTS} rollouts as its target, instead of the return", grades="vpi"),
}


def tasks_of(data: Data) -> list[Task]:
    """Return the tasks that the data is collected on."""
    return list(world(BOTH).tasks(data.tasks, "train", FIRST["fit"]))


def collected(data: Data) -> list[Trajectory]:
    """Play what is missing of the data, and return it."""
    folder = RUNS / "data" / data.name
    tasks = tasks_of(data)
    model = EmbeddedChatModel(model=str(POLICY), temperature=data.temperature)
    agent, make, horizon, n = plain_text_agent(model), world(BOTH).make, world(BOTH).horizon, data.total // data.tasks
    branching = None if data.branches is None else Branching(data.branches)
    collect(
        agent, tasks, make, n, folder, horizon=horizon, policy="workshop",
        settings={"temperature": data.temperature, **(branching.settings if branching else {})},
        play=branching.rollouts(agent, make, n, horizon=horizon) if branching else None,
    )  # fmt: skip
    return list(read_trajectories(folder))


def train(name: str, seed: int) -> None:
    """Train a lever's model, unless it exists."""
    out, lever = RUNS / "models" / f"{name}-{seed}", LEVERS[name]
    if out.exists():
        return
    data = collected(lever.data)
    objective = Objective(target="return") if lever.centred else BCE
    settings = replace(EMBEDDED, **{"seed": seed, "objective": objective, **lever.settings})
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        if lever.ranked:
            stack.enter_context(ranking_loss())
        if lever.td is not None:
            stack.enter_context(td_loss(lever.td))
        if lever.grades is not None:
            stack.enter_context(targets(graded(lever.data, data, lever.grades)))
        train_value(POLICY, centred(data) if lever.centred else data, scratch, settings, anyway=True)
        shutil.copy(Path(scratch, FILE), Path(scratch, "adapter"))
        shutil.copytree(Path(scratch, "adapter"), out)


def graded(data: Data, trajectories: Sequence[Trajectory], how: str) -> Mapping[Key, float]:
    """Return the grades of all unfinished states, computed once."""
    tasks = {task.id: task for task in tasks_of(data)}
    path = RUNS / "grades" / f"{how}-{data.name}.jsonl"
    return grades_of(trajectories, tasks, world(BOTH).make, Policy(str(POLICY), 200_000), GRADES[how], path)


def centred(data: Sequence[Trajectory]) -> list[Trajectory]:
    """Subtract the mean return of a trajectory's task from its last reward."""
    returns = defaultdict[str, list[float]](list)
    for trajectory in data:
        returns[trajectory.task.id].append(trajectory.return_)

    def shifted(trajectory: Trajectory) -> Trajectory:
        *before, last = trajectory.steps
        reward = last.reward - float(np.mean(returns[trajectory.task.id]))
        return replace(trajectory, steps=(*before, replace(last, reward=reward)))

    return [shifted(trajectory) for trajectory in data]


def measure(names: Sequence[str]) -> None:
    """Rank the tries of every task by every model, at each step."""
    path = RUNS / "auc.jsonl"
    done = {(line["task"], line["model"]) for line in read(path)}
    critics = {name: _critic(name) for name in names if name not in (ROLLOUTS, ORACLE)}
    policy = Policy(str(POLICY), 200_000)
    for task in world(BOTH).tasks(MEASURED, "train", FIRST["measure"]):
        left = [name for name in names if (task.id, name) not in done]
        if left:
            together = Together(Forest(policy, task, world(BOTH).make, 0))
            seat = Seat(together, _Silent(), (HEAT,), hide_rewards=True)
            # These two know the states of a single task.
            other = Forest(policy, task, world(BOTH).make, 1_000_000)
            of_task: dict[str, Judge] = {ROLLOUTS: Rollouts(other, HEAT, N_ROLLOUTS), ORACLE: NoisyPlanner(Level(0), 0)}
            judges = {name: critics.get(name) or of_task[name] for name in left}
            found = asyncio.run(_judged(together, seat, judges))
            with path.open("a", encoding="utf-8") as file:
                for name, auc in found.items():
                    file.write(json.dumps({"task": task.id, "model": name, "auc": auc}) + "\n")


def _critic(name: str) -> Judge:
    lever, _, seed = name.rpartition("-")
    if lever == SUMMED:
        return Summed(_critic(f"{BASE}-{seed}"))
    return ValueModel(EmbeddedCritic(POLICY, POLICY / "value" if name == SHIPPED else RUNS / "models" / name))


async def _judged(together: Together, seat: Seat, judges: Mapping[str, Judge]) -> dict[str, dict[int, float]]:
    async def tries() -> Any:
        return await independent(seat, TRIES, 1.0)

    (pool,) = await together.run([tries()])
    nodes = [state.node for state in pool.states]
    return {name: await areas(nodes, judge) for name, judge in judges.items()}


def report() -> None:
    """Pack the measurements, and write the page's table: means over steps, then tasks; a lever is its seeds' mean."""
    lines = sorted(read(RUNS / "auc.jsonl"), key=lambda line: (line["task"], line["model"]))
    RAW.parent.mkdir(parents=True, exist_ok=True)
    replace_file(RAW, gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), mtime=0))
    areas_of = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for line in lines:
        if line["auc"]:
            lever = line["model"].rpartition("-")[0] or line["model"]
            areas_of[lever][line["task"]].append(float(np.mean(list(line["auc"].values()))))
    values: dict[str, dict[tuple[str, int], float]] = {
        lever: {(task, 0): float(np.mean(found)) for task, found in of.items()} for lever, of in areas_of.items()
    }
    rows = ["| lever | within-task AUC | minus base |", "| --- | ---: | ---: |"]
    for lever in (name for name in (SHIPPED, *LEVERS, SUMMED, ROLLOUTS, ORACLE) if name in values):
        about = LEVERS[lever].about if lever in LEVERS else ABOUT[lever]
        mean = estimate(values[lever])
        cell = ""
        if lever != BASE:
            difference = paired(values[lever], values[BASE])
            cell = f"{difference.difference:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
        rows.append(f"| **{lever}**: {about} | {mean.mean:.3f} ± {mean.standard_error:.3f} | {cell} |")
    start, end = "<!-- levers -->\n", "<!-- /levers -->"
    head, rest = PAGE.read_text(encoding="utf-8").split(start)
    text = head + start + "\n".join(rows) + "\n" + end + rest.split(end)[1]
    replace_file(PAGE, text.encode())


def main() -> None:
    """Execute a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "measure", "report"])
    parser.add_argument("levers", nargs="*", help="default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = [(name, seed) for name in options.levers or LEVERS for seed in SEEDS]
    names = [f"{name}-{seed}" for name, seed in models]
    if options.command == "train":
        for name, seed in models:
            train(name, seed)
            print(name, seed, flush=True)
    elif options.command == "measure":
        summed = [f"{SUMMED}-{seed}" for seed in SEEDS if (RUNS / "models" / f"{BASE}-{seed}").exists()]
        trained = [name for name in names if (RUNS / "models" / name).exists()]
        measure([SHIPPED, ROLLOUTS, ORACLE, *summed, *trained])
    else:
        report()


if __name__ == "__main__":
    main()
