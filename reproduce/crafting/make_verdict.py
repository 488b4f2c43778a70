"""Make the embedded verdict model: sample candidates at played states, label them, then train the adapter.

    python reproduce/crafting/make_verdict.py FOLDER --data DATA [--tasks 400]

FOLDER holds the policy; the adapter (float16) and its JSON go to FOLDER/verdict. DATA keeps trajectories (at several
temperatures) and the labelled candidates; existing files are not made again. Labels come from the world's planner. The
tasks are of the split "train", from number 100,000 on; no other model and no comparison uses them.
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
from amc_agents.training.verdict.labelling import (
    CraftingLabels,
    Judged,
    labelled,
    read_judged,
    sample_options,
    write_judged,
)
from amc_agents.training.verdict.picking import print_metrics
from amc_agents.training.verdict.train_verdict import EMBEDDED, VerdictTrainingProgress, train_verdict

HORIZON = 20
SPLIT, FIRST_TASK, BAND = "train", 100_000, (5, 16)
PLAYED = ((0.5, 3), (0.0, 1))
"""(temperature, trajectories per task), for states close to those of play with a critic."""
CANDIDATES = 8
"""Samples per state, at the temperature of the trajectory; the greedy turn is added."""
ERRORS = 2
"""A trajectory is truncated after this many steps that are not GOOD; play with a critic rarely gets further."""
SETTINGS = replace(EMBEDDED, epochs=3, lora_rank=16, lora_alpha=32)


def _counter(bar: Bar, title: str, total: int) -> Callable[[Any], None]:
    """Add a progress line, and return a callback that takes a count or a progress with `tasks`."""
    line = bar.add_task(title, total=total)
    return lambda done: bar.update(line, completed=getattr(done, "tasks", done))


def judged_play(options: argparse.Namespace, bar: Bar) -> list[Judged]:
    """Play, sample candidates and label them, unless DATA contains the results."""
    tasks = list(generate_tasks(options.tasks, SPLIT, first_seed=FIRST_TASK, optimal_steps=BAND))
    judged: list[Judged] = []
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
        judged += read_judged(kept)
    return [truncated for play in judged if (truncated := until_errors(play, ERRORS)).labels]


def until_errors(judged: Judged, errors: int) -> Judged:
    """Truncate a trajectory before the step that exceeds the number of errors."""
    n_errors = np.cumsum([label != "GOOD" for label in judged.labels])
    length = int((n_errors <= errors).sum())
    prefix = replace(judged.trajectory.prefix(length), done=True)
    return Judged(prefix, judged.labels[:length], judged.options[:length])


def main() -> None:
    """Sample, train, and write the shipped files."""
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
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, Bar(console=console) as bar:
        judged = judged_play(options, bar)
        line = bar.add_task("training")

        def show(progress: VerdictTrainingProgress) -> None:
            bar.update(line, completed=progress.step, total=progress.steps)

        trained = Path(scratch) / "model"
        checkpoint = train_verdict(options.folder, judged, trained, settings, progress=show)
        ship(trained, out)
    print_metrics(checkpoint.metrics, console)
    console.print(f"trained in {time.perf_counter() - start:.0f} s -> {out}")


def ship(trained: Path, out: Path) -> None:
    """Copy the adapter and the checkpoint's JSON of a trained folder."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(trained / "adapter" / "adapter_model.safetensors", out)
    shutil.copy(trained / FILE, out)
    # The adapter's config names its base model's folder: here, the parent folder.
    config = json.loads((trained / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = ".."
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
