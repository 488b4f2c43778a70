"""Make the embedded value model: play crafting tasks with the embedded policy, then train the adapter.

    python reproduce/crafting/make_value.py FOLDER --data DATA [DATA ...] [--tasks 500] [--trajectories 8]
        [--temperature 1.0] [--world crafting]

FOLDER holds the policy; the adapter (float16) and its JSON go to FOLDER/value. DATA keeps the trajectories; an
interrupted collection resumes. With several folders, the first is collected and all are trained on. The tasks are of
the split "train", which neither the policy's training nor a comparison uses. Tasks of other worlds have no band of
difficulty.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress as Bar

from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.plan import CRAFTING, ComparisonPlan
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.training.collecting import CollectionProgress, collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.metrics import print_metrics
from amc_agents.training.settings import Objective
from amc_agents.training.value.train_value import EMBEDDED, TrainingProgress, train_value
from reproduce.crafting.branching import Branching

SPLIT = "train"


def collect_data(options: argparse.Namespace, console: Console) -> None:
    """Play the tasks that the dataset lacks."""
    low, high = options.optimal_steps
    band = (low, high) if options.world == CRAFTING else None
    plan = ComparisonPlan(
        methods=(), n_tasks=options.tasks, world=options.world, band=band, split=SPLIT, first=options.first
    )
    tasks = plan.tasks()
    model = EmbeddedChatModel(model=options.player or str(options.folder), temperature=options.temperature)
    agent, spec = plain_text_agent(model), plan.world_spec
    branching, play = None, None
    if options.branches is not None:
        branching = Branching(options.branches)
        play = branching.rollouts(agent, spec.make, options.trajectories, horizon=spec.horizon)
    with Bar(console=console) as bar:
        line = bar.add_task("collecting", total=len(tasks))

        def show(progress: CollectionProgress) -> None:
            bar.update(line, completed=progress.tasks)

        collect(
            agent,
            tasks,
            spec.make,
            options.trajectories,
            options.data[0],
            horizon=spec.horizon,
            policy=policy_name(options.player or options.folder),
            settings={
                "temperature": options.temperature,
                "split": SPLIT,
                **({"first_task": options.first} if options.first else {}),
                **(branching.settings if branching else {}),
                **({"optimal_steps": options.optimal_steps} if band else {"world": options.world}),
            },
            seed=options.seed,
            play=play,
            progress=show,
        )


def policy_name(player: str | Path) -> str:
    """Return the name under which trajectories of a policy are stored: that of its folder, or of the shipped model."""
    return f"embedded:{Path(player).resolve().name}"


def train(options: argparse.Namespace, console: Console) -> None:
    """Train the adapter and write its shipped files."""
    torch.set_num_threads(1)
    trajectories = [each for folder in options.data for each in read_trajectories(folder)][: options.limit]
    settings = replace(
        EMBEDDED,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        seed=options.seed,
        objective=Objective(loss=options.loss, target=options.target, beta=options.beta, soft=options.soft),
        shuffle_targets=options.shuffle_targets,
    )
    mean = sum(trajectory.return_ for trajectory in trajectories) / len(trajectories)
    console.print(f"{len(trajectories)} trajectories, mean return {mean:.3f}")
    start = time.perf_counter()
    out = options.out or options.folder / "value"
    with tempfile.TemporaryDirectory() as scratch, Bar(console=console) as bar:
        line = bar.add_task("training")

        def show(progress: TrainingProgress) -> None:
            bar.update(line, completed=progress.step, total=progress.steps)

        checkpoint = train_value(options.base or options.folder, trajectories, scratch, settings, progress=show)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(scratch, "adapter", "adapter_model.safetensors"), out)
        shutil.copy(Path(scratch, FILE), out)
        # The adapter's config names its base model's folder: here, the parent folder.
        config = json.loads(Path(scratch, "adapter", "adapter_config.json").read_text())
        config["base_model_name_or_path"] = ".."
        (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    print_metrics(checkpoint.metrics, console)
    console.print(f"trained in {time.perf_counter() - start:.0f} s -> {out}")


def main() -> None:
    """Collect, then train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, help="default: FOLDER/value")
    parser.add_argument("--base", type=Path, help="base weights of the adapter; default: FOLDER")
    parser.add_argument("--player", help="policy that plays, a name or folder; default: FOLDER")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first task of the split")
    parser.add_argument("--trajectories", type=int, default=8, help="number per task")
    parser.add_argument("--branches", type=int, help="what each trajectory of a task becomes; default: independent")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--optimal-steps", type=int, nargs=2, default=[4, 11], metavar=("LOW", "HIGH"))
    parser.add_argument("--epochs", type=int, default=EMBEDDED.epochs)
    parser.add_argument("--learning-rate", type=float, default=EMBEDDED.learning_rate)
    parser.add_argument("--target", choices=["future", "return"], default=EMBEDDED.objective.target)
    parser.add_argument("--loss", choices=["squared", "weighted", "bce"], default=EMBEDDED.objective.loss)
    parser.add_argument("--soft", action="store_true", help="targets of eq. 5")
    parser.add_argument("--beta", type=float, help="beta of eq. 5 or of the weighted loss, in reward units")
    parser.add_argument("--limit", type=int, help="maximum number of trajectories to train on")
    parser.add_argument("--world", default=CRAFTING, help="name of the world, as in amc bench")
    parser.add_argument("--shuffle-targets", action="store_true", help="control experiment with shuffled targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-collect", action="store_true", help="train on DATA without collecting")
    parser.add_argument("--no-train", action="store_true", help="collect without training")
    options = parser.parse_args()
    console = Console()
    if not options.no_collect:
        collect_data(options, console)
    if not options.no_train:
        train(options, console)


if __name__ == "__main__":
    main()
