"""Makes the embedded verdict model: samples candidates at states of play, labels them, then trains the adapter.

    python reproduce/crafting/make_verdict.py FOLDER --data DATA [--tasks 400]

FOLDER is the policy's; the adapter (float16) and its JSON go to FOLDER/verdict. DATA keeps what was played (at several
temperatures) and the labelled candidates: what is there already is not made again. Labels come from the world's
planner. The tasks are of the split "train", from 100,000 on: no other model and no comparison uses them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress as Bar

from amc_agents.critics.verdict.checkpoint import FILE
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.text_agent import text_agent
from amc_agents.training.collecting import collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.verdict.data import Judged, labelled, read_judged, sample_options, write_judged
from amc_agents.training.verdict.labels import CraftingLabels
from amc_agents.training.verdict.metrics import print_metrics
from amc_agents.training.verdict.training import EMBEDDED, VerdictTrainingProgress, train_verdict

HORIZON = 20
SPLIT, FIRST_TASK, BAND = "train", 100_000, (5, 16)
PLAYED = ((0.5, 3), (0.0, 1))
"""(temperature, trajectories of each task): near the states that a critic leads to."""
CANDIDATES = 8
"""Samples of each state, at the temperature of the play; the greedy turn is one more candidate."""
ERRORS = 2
"""A trajectory is cut after so many steps that are not GOOD: play that a critic leads seldom comes by what follows."""
SETTINGS = replace(EMBEDDED, epochs=3, lora_rank=16, lora_alpha=32)


def _counter(bar: Bar, title: str, total: int) -> Callable[[Any], None]:
    """A line that goes on with what a callback is told: how much is done, or a progress that counts tasks."""
    line = bar.add_task(title, total=total)
    return lambda done: bar.update(line, completed=getattr(done, "tasks", done))


def judged_play(options: argparse.Namespace, bar: Bar) -> list[Judged]:
    """Plays, samples candidates and labels them, as far as DATA lacks it."""
    tasks = list(generate_tasks(options.tasks, SPLIT, first_seed=FIRST_TASK, optimal_steps=BAND))
    found: list[Judged] = []
    for number, (temperature, trajectories) in enumerate(PLAYED):
        kept = options.data / f"judged-{number}.jsonl"
        if not kept.exists():
            model = EmbeddedChatModel(model=str(options.folder), temperature=temperature)
            collect(
                text_agent(model), tasks, CraftingWorld, trajectories, options.data / f"played-{number}",
                horizon=HORIZON, policy="embedded:crafting", seed=options.seed + number,
                settings={"temperature": temperature, "optimal_steps": BAND, "split": SPLIT},
                progress=_counter(bar, f"playing at temperature {temperature}", len(tasks)),
            )  # fmt: skip
            played = read_trajectories(options.data / f"played-{number}")
            candidates = asyncio.run(
                sample_options(
                    played, model, k=CANDIDATES, seed=options.seed + number,
                    progress=_counter(bar, "sampling candidates", len(played)),
                )
            )  # fmt: skip
            write_judged(kept, labelled(played, CraftingLabels(), candidates))
        found += read_judged(kept)
    return [cut for one in found if (cut := until_errors(one, ERRORS)).labels]


def until_errors(judged: Judged, errors: int) -> Judged:
    """What was played until before the step that is one error too many."""
    seen = np.cumsum([label != "GOOD" for label in judged.labels])
    length = int((seen <= errors).sum())
    cut = replace(judged.trajectory.prefix(length), done=True)
    return Judged(cut, judged.labels[:length], judged.options[:length])


def main() -> None:
    """Samples, trains, and writes what is shipped of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="default: FOLDER/verdict")
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=SETTINGS.epochs)
    parser.add_argument("--learning-rate", type=float, default=SETTINGS.learning_rate)
    parser.add_argument("--disagreement", type=float, default=SETTINGS.disagreement)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    out = options.out or options.folder / "verdict"
    settings = replace(
        SETTINGS,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        disagreement=options.disagreement,
        seed=options.seed,
    )
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, Bar(console=console) as bar:
        judged = judged_play(options, bar)
        line = bar.add_task("training")

        def show(progress: VerdictTrainingProgress) -> None:
            bar.update(line, completed=progress.step, total=progress.steps)

        made = Path(scratch) / "model"
        checkpoint = train_verdict(options.folder, judged, made, settings, progress=show)
        ship(made, out)
    print_metrics(checkpoint.metrics, console)
    console.print(f"made in {time.perf_counter() - begun:.0f} s -> {out}")


def ship(made: Path, out: Path) -> None:
    """Copies the adapter and the checkpoint's JSON of a trained folder."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "adapter" / "adapter_model.safetensors", out)
    shutil.copy(made / FILE, out)
    # The adapter's own description names the folder that it was trained in: here it lies inside that folder.
    described = json.loads((made / "adapter" / "adapter_config.json").read_text())
    described["base_model_name_or_path"] = ".."
    (out / "adapter_config.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
