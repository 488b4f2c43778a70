"""A value model with sixteen times the data: does AMC gain with a learned critic?

    python reproduce/scaled/scaled.py train WORLD     # collects the data and trains the critic
    python reproduce/scaled/scaled.py tune WORLD      # each critic's setting, and its Best-of-N, on training tasks
    python reproduce/scaled/scaled.py play WORLD --tasks 400    # test tasks
    python reproduce/scaled/scaled.py report          # the tables of docs/results/scaled

All commands resume. The worlds are those of `WORLDS`; the searches and measures are those of reproduce/dose.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from amc_agents.bench import crafting
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.statistics import paired
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.envs.registry import world
from amc_agents.files import replace_file
from amc_agents.markdown import table as table_in_markdown
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.training.collecting import collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.value.train_value import EMBEDDED, train_value
from amc_agents.types import Task
from reproduce.beyond.play import Policy
from reproduce.dose import doses, playing
from reproduce.dose.doses import BOTH, GRID, HARD, LEARNED, TEMPERATURES, Setting
from reproduce.dose.gains import Row, interval, lines_of, row_of
from reproduce.dose.report import table_of
from reproduce.dose.tune import best, metric_of, scores_of
from reproduce.levers.levers import BCE
from reproduce.pages import write_parts
from reproduce.scaled.tries import Tries

RUNS = Path("runs/scaled")
PAGE = Path("docs/results/scaled/README.md")
RAW = PAGE.parent / "raw"
HERE = Path(__file__).parent
CHOSEN = HERE / "chosen.json"
SCALED, ORACLE = "scaled", "oracle"
CRITICS = (SCALED, LEARNED, ORACLE)
WORLDS = (BOTH, HARD)
TASKS, TRIES, HEAT = 3840, 4, 0.7
"""Training data of the scaled critic: tasks, runs per task and their temperature."""
BANDS = {"fit": (8, 16), "tune": crafting.BAND, "test": crafting.BAND, "fresh": crafting.BAND}
"""Difficulty of the tasks in crafting."""
FIRST = {"fit": ("train", 500_000), "tune": ("train", 340_000), "test": ("test", 5_000), "fresh": ("test", 5_400)}
"""Split and number of the first task. No other model or experiment uses these tasks."""
ROUNDS = ((16, 8), (48, 3), (96, 1))
"""Number of training tasks of each round of successive halving, and how many settings survive it."""
_CACHE = 200_000
RECIPE = replace(EMBEDDED, objective=BCE, epochs=2, lora_rank=32, lora_alpha=64)


def tasks_of(name: str, group: str, n_tasks: int) -> list[Task]:
    """Return the first tasks of a group."""
    split, first = FIRST[group]
    if name == HARD:
        return list(crafting.tasks(n_tasks, BANDS[group], split=split, first=first))
    return list(world(name).tasks(n_tasks, split, first))


def adapter_of(name: str) -> Path:
    """Folder of a world's scaled critic."""
    return HERE / "models" / name


def train(name: str) -> None:
    """Play what is missing of the data, and train the critic unless it exists."""
    torch.set_num_threads(1)
    folder, spec, tasks = RUNS / "data" / name, world(name), tasks_of(name, "fit", TASKS)
    collect(
        plain_text_agent(EmbeddedChatModel(model=str(spec.model), temperature=HEAT)), tasks, spec.make, TRIES, folder,
        horizon=spec.horizon, policy=f"embedded:{spec.model}", settings={"temperature": HEAT},
        n_concurrent=24, play=Tries(Policy(str(spec.model), _CACHE), HEAT, spec.make, TRIES, spec.horizon),
    )  # fmt: skip
    if adapter_of(name).exists():
        return
    data = list(read_trajectories(folder))
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = train_value(model_folder(str(spec.model)), data, scratch, RECIPE, anyway=True)
        shutil.copy(Path(scratch, FILE), Path(scratch, "adapter"))
        shutil.copytree(Path(scratch, "adapter"), adapter_of(name))
    print(name, checkpoint.metrics["ranking"]["sentences"])


def prepare() -> None:
    """Make the scaled critics known to the searches, which write to a folder of this experiment."""
    playing.RUNS = RUNS
    for name in WORLDS:
        doses.MODELS[name, SCALED] = f"embedded:{world(name).model}?adapter={adapter_of(name)}"


def tune(name: str) -> None:
    """Choose each critic's setting by successive halving, and the temperature of its Best-of-N on all tuning tasks."""
    prepare()
    metric, of_name = metric_of(name), {setting.name: setting for setting in GRID}
    left: dict[str, list[str]] = {critic: list(of_name) for critic in CRITICS}
    for n_tasks, kept in ROUNDS:
        tasks = tasks_of(name, "tune", n_tasks)
        runs = [(critic, of_name[setting]) for critic in CRITICS for setting in left[critic]]
        lines = playing.play(name, "tune", 0, tasks, runs, dict.fromkeys(TEMPERATURES, CRITICS))
        scores, ids = scores_of(lines, metric), [task.id for task in tasks]
        left = {critic: best(scores, critic, left[critic], ids, kept) for critic in CRITICS}
        print(name, n_tasks, left, flush=True)
    pools = [f"pool_T{heat:g}" for heat in TEMPERATURES]
    table = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    for critic in CRITICS:
        tried = {
            setting: {"merit": round(float(np.mean(list(of.values()))), 4), "tasks": len(of)}
            for (judge, setting), of in sorted(scores.items())
            if judge == critic
        }
        chosen = {"amc": left[critic][0], "best_of": best(scores, critic, pools, ids, 1)[0], "tried": tried}
        table.setdefault(name, {})[critic] = chosen
    replace_file(CHOSEN, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode())


def chosen(name: str, critic: str) -> tuple[Setting, float]:
    """Return a critic's setting of AMC and its temperature of Best-of-N."""
    of = json.loads(CHOSEN.read_text(encoding="utf-8"))[name][critic]
    return next(each for each in GRID if each.name == of["amc"]), float(of["best_of"].removeprefix("pool_T"))


def play(name: str, n_tasks: int) -> None:
    """Play AMC and the pools of all critics, and pack the runs."""
    prepare()
    runs, pools = [], dict[float, list[str]]()
    for critic in CRITICS:
        setting, heat = chosen(name, critic)
        runs.append((critic, setting))
        for each in {heat, setting.temperatures[0]}:
            pools.setdefault(each, []).append(critic)
    playing.play(name, "test", 0, tasks_of(name, "test", n_tasks), runs, pools, CRITICS)
    pack(name, "test")


def pack(name: str, group: str) -> None:
    """Keep a group's runs with the results."""
    text = playing.file_of(name, group, 0).read_text(encoding="utf-8")
    RAW.mkdir(parents=True, exist_ok=True)
    whole = "".join(sorted(text.splitlines(True))).encode()
    replace_file(packed(name, group), gzip.compress(whole, mtime=0))


def packed(name: str, group: str) -> Path:
    """The file of a group's runs."""
    return RAW / f"{name}-{group}.jsonl.gz"


def rows_of(name: str) -> dict[str, Row]:
    """Return each critic's row, with the tokens of critics charged."""
    table, rows = lines_of(packed(name, "test")), {}
    for critic in CRITICS:
        setting, heat = chosen(name, critic)
        rows[critic] = row_of(name, table, critic, setting.name, heat, charged=True)
    return rows


def share_of_oracle(ours: Row, oracle: Row) -> str:
    """Return a critic's gain as a share of the oracle's, with a 95% interval by a bootstrap over tasks.

    Without a gain of the oracle whose interval excludes 0, there is no share.
    """
    if ours is oracle or paired(oracle.picks, oracle.matched).low <= 0:
        return ""
    tasks = sorted(ours.picks.keys() & oracle.picks.keys())
    gains = np.array([[row.picks[key] - row.matched[key] for key in tasks] for row in (ours, oracle)])
    drawn = np.random.default_rng(0).integers(len(tasks), size=(10_000, len(tasks)))
    low, high = np.quantile(np.divide(*gains[:, drawn].mean(axis=2)), [0.025, 0.975])
    return f"{np.divide(*gains.mean(axis=1)):.2f} [{low:.2f}, {high:.2f}]"


def tables(name: str) -> str:
    """Return a world's tables."""
    rows = rows_of(name)
    header = ["critic", "AMC minus AMC, learned", "Best-of-M minus Best-of-M, learned", "AMC minus Best-of-M, learned"]
    header += ["gain as a share of the oracle's"]
    learned = rows[LEARNED]
    body = [
        [
            critic,
            *(interval(paired(a, b)) if critic != LEARNED or b is not a else "" for a, b in (
                (row.picks, learned.picks), (row.matched, learned.matched), (row.picks, learned.matched)
            )),
            share_of_oracle(row, rows[ORACLE]),
        ]
        for critic, row in rows.items()
    ]  # fmt: skip
    return "\n\n".join([table_of(list(rows.values())), table_in_markdown(header, body, "lrrrr")])


def report() -> None:
    """Write the tables between the page's markers."""
    for name in WORLDS:
        if packed(name, "test").exists():
            write_parts(PAGE, {name: tables(name)})


def parsed(about: str | None, commands: list[str]) -> argparse.Namespace:
    """Parse the command line of a script with these commands."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=commands)
    parser.add_argument("world", nargs="?", choices=WORLDS)
    parser.add_argument("--tasks", type=int, default=400, help="test tasks")
    return parser.parse_args()


def main() -> None:
    """Execute a command."""
    options = parsed(__doc__, ["train", "tune", "play", "report"])
    match options.command:
        case "train":
            train(options.world)
        case "tune":
            tune(options.world)
        case "play":
            play(options.world, options.tasks)
        case _:
            report()


if __name__ == "__main__":
    main()
