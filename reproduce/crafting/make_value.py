"""Makes the embedded value model: plays crafting tasks with the embedded policy, then trains the adapter.

    python reproduce/crafting/make_value.py FOLDER --data DATA [--tasks 500] [--trajectories 8] [--temperature 1.0]
        [--world crafting]

FOLDER is the policy's; the adapter (float16) and its JSON go to FOLDER/value. DATA keeps the trajectories: an
interrupted collection goes on where it was, and a complete one is trained on as it is. The tasks are of the split
"train": no book of it was seen by the policy's training, and none is used in a comparison. Another world's tasks have
no band of difficulty.
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
from amc_agents.training.report import print_metrics
from amc_agents.training.value.objective import Objective
from amc_agents.training.value.training import EMBEDDED, TrainingProgress, train_value

SPLIT = "train"


def collect_data(options: argparse.Namespace, console: Console) -> None:
    """Plays what the dataset still lacks."""
    low, high = options.optimal_steps
    band = (low, high) if options.world == CRAFTING else None
    plan = ComparisonPlan(
        methods=(), n_tasks=options.tasks, world=options.world, band=band, split=SPLIT, first=options.first
    )
    tasks = plan.tasks()
    model = EmbeddedChatModel(model=options.player or str(options.folder), temperature=options.temperature)
    with Bar(console=console) as bar:
        line = bar.add_task("collecting", total=len(tasks))

        def show(progress: CollectionProgress) -> None:
            bar.update(line, completed=progress.tasks)

        collect(
            plain_text_agent(model),
            tasks,
            plan.world_spec.make,
            options.trajectories,
            options.data,
            horizon=plan.world_spec.horizon,
            policy="embedded:crafting",
            settings={
                "temperature": options.temperature,
                "split": SPLIT,
                **({"first_task": options.first} if options.first else {}),
                **({"optimal_steps": options.optimal_steps} if band else {"world": options.world}),
            },
            seed=options.seed,
            progress=show,
        )


def train(options: argparse.Namespace, console: Console) -> None:
    """Trains the adapter and writes what is shipped of it."""
    torch.set_num_threads(1)
    trajectories = read_trajectories(options.data)[: options.limit]
    settings = replace(
        EMBEDDED,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        seed=options.seed,
        objective=Objective(loss=options.loss, target=options.target, beta=options.beta, soft=options.soft),
        shuffle_targets=options.shuffle_targets,
    )
    mean = sum(one.return_ for one in trajectories) / len(trajectories)
    console.print(f"{len(trajectories)} trajectories, mean return {mean:.3f}")
    begun = time.perf_counter()
    out = options.out or options.folder / "value"
    with tempfile.TemporaryDirectory() as scratch, Bar(console=console) as bar:
        line = bar.add_task("training")

        def show(progress: TrainingProgress) -> None:
            bar.update(line, completed=progress.step, total=progress.steps)

        checkpoint = train_value(options.base or options.folder, trajectories, scratch, settings, progress=show)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(scratch, "adapter", "adapter_model.safetensors"), out)
        shutil.copy(Path(scratch, FILE), out)
        # The adapter's own description names the folder that it was trained in: here it lies inside that folder.
        described = json.loads(Path(scratch, "adapter", "adapter_config.json").read_text())
        described["base_model_name_or_path"] = ".."
        (out / "adapter_config.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")
    print_metrics(checkpoint.metrics, console)
    console.print(f"trained in {time.perf_counter() - begun:.0f} s -> {out}")


def main() -> None:
    """Collects, then trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="default: FOLDER/value")
    parser.add_argument("--base", type=Path, help="the weights that the adapter is put on; default: FOLDER")
    parser.add_argument("--player", help="the policy that plays, by name or folder; default: FOLDER")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first task of the split")
    parser.add_argument("--trajectories", type=int, default=8, help="of each task")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--optimal-steps", type=int, nargs=2, default=[4, 11], metavar=("LEAST", "MOST"))
    parser.add_argument("--epochs", type=int, default=EMBEDDED.epochs)
    parser.add_argument("--learning-rate", type=float, default=EMBEDDED.learning_rate)
    parser.add_argument("--target", choices=["future", "return"], default=EMBEDDED.objective.target)
    parser.add_argument("--loss", choices=["squared", "weighted", "bce"], default=EMBEDDED.objective.loss)
    parser.add_argument("--soft", action="store_true", help="targets of eq. 5")
    parser.add_argument("--beta", type=float, help="of eq. 5, or of the weighted loss, in reward units")
    parser.add_argument("--limit", type=int, help="train on so many of DATA's trajectories alone")
    parser.add_argument("--world", default=CRAFTING, help="its name, as amc bench takes it")
    parser.add_argument("--shuffle-targets", action="store_true", help="the control: nothing should be learnt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-collect", action="store_true", help="train on DATA as it is")
    options = parser.parse_args()
    console = Console()
    if not options.no_collect:
        collect_data(options, console)
    train(options, console)


if __name__ == "__main__":
    main()
