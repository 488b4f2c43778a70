"""`amc collect` and `amc train value`: from play to a critic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.errors import ConfigurationError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from amc_agents.types import Task


class Target(StrEnum):
    """What a value model predicts at every state."""

    whole = "return"
    rest = "future"


def collect(
    out: Annotated[Path, typer.Option(help="Folder of the dataset; an interrupted collection goes on where it was.")],
    model: Annotated[
        str,
        typer.Option(
            help="The policy: a shipped model's name, a folder of that layout, hf:FOLDER (any transformers chat model) "
            "or provider:model (any LangChain chat model, with its key in the environment)."
        ),
    ] = "crafting",
    tasks: Annotated[int, typer.Option(min=1, help="How many generated crafting tasks to play.")] = 500,
    trajectories: Annotated[int, typer.Option(min=1, help="How often to play each task.")] = 8,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    band: Annotated[
        tuple[int, int], typer.Option(metavar="LOW HIGH", help="Difficulty: steps of the shortest known way.")
    ] = (4, 14),
    split: Annotated[str, typer.Option(help='Tasks of "train" or "test"; a critic is trained on "train".')] = "train",
    first: Annotated[int, typer.Option(min=0, help="Number of the first task.")] = 0,
    horizon: Annotated[int, typer.Option(min=1, help="Most steps of a trajectory.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Makes the collection reproducible.")] = 0,
    concurrent: Annotated[int, typer.Option(min=1, help="Tasks played at the same time.")] = 8,
) -> None:
    """Play tasks with a policy, and keep the trajectories (Parquet; needs the extra: train)."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    from amc_agents.envs.crafting import CraftingWorld, generate_tasks
    from amc_agents.nodes.text_agent import text_agent
    from amc_agents.training.collect import Progress
    from amc_agents.training.collect import collect as collected

    chat_model, inputs = _policy(model, temperature)
    chosen = list(generate_tasks(tasks, split, first_seed=first, optimal_steps=band))
    console = Console()
    with Bar(console=console) as bar:
        line = bar.add_task("collecting", total=len(chosen))

        def show(progress: Progress) -> None:
            bar.update(line, completed=progress.tasks)

        new = collected(
            text_agent(chat_model), chosen, CraftingWorld, trajectories, out, horizon=horizon, policy=model,
            settings={"temperature": temperature, "optimal_steps": list(band), "split": split}, seed=seed,
            n_concurrent=concurrent, inputs=inputs, progress=show,
        )  # fmt: skip
    console.print(f"{new} new trajectories in {out}. Next: amc train value --data {out} --out VALUE")


def value(
    data: Annotated[Path, typer.Option(help="Folder that `amc collect` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the critic: --critic hf:FOLDER uses it.")],
    base: Annotated[
        str, typer.Option(help="The model to train on top of: a shipped one's name, or a transformers folder.")
    ] = "crafting",
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data. Default: the base's.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the base's.")] = None,
    target: Annotated[
        Target,
        typer.Option(help='"return": the whole return, which also picks without rewards; "future": what is left.'),
    ] = Target.whole,
    shuffle_targets: Annotated[
        bool, typer.Option("--shuffle-targets", help="The control: train on wrong targets; nothing should be learnt.")
    ] = False,
    device: Annotated[str, typer.Option(help='"cpu", "cuda", ...')] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, split and order.")] = 0,
) -> None:
    """Train a value model on collected trajectories, and print how well it predicts on held-out tasks."""
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import Progress as Bar

    from amc_agents.training.dataset import read_trajectories
    from amc_agents.training.report import print_metrics
    from amc_agents.training.value import EMBEDDED, Progress, ValueTrainingSettings, train_value

    folder, embedded = _base_folder(base)
    chosen: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate}
    settings = replace(
        EMBEDDED if embedded else ValueTrainingSettings(),
        target=target.value, shuffle_targets=shuffle_targets, device=device, seed=seed,
        **{name: given for name, given in chosen.items() if given is not None},
    )  # fmt: skip
    trajectories = read_trajectories(data)
    console = Console()
    console.print(f"{len(trajectories)} trajectories from {data}")
    with Bar(console=console) as bar:
        line = bar.add_task("training")

        def show(progress: Progress) -> None:
            bar.update(line, completed=progress.step, total=progress.steps)

        checkpoint = train_value(folder, trajectories, out, settings, progress=show)
    print_metrics(checkpoint.metrics, console)
    console.print(f"Written: {out}. Try it: amc bench --critic hf:{out} --out RESULTS")


def _policy(name: str, temperature: float) -> tuple[BaseChatModel, Callable[[Task], Mapping[str, Any]] | None]:
    """A chat model, and what to tell it at the start where it does not know the world."""
    if name.startswith("hf:"):
        from amc_agents.models.transformers_chat import TransformersChatModel

        return TransformersChatModel(model=name.removeprefix("hf:"), temperature=temperature), _explained
    if ":" in name:
        from langchain.chat_models import init_chat_model

        try:
            return init_chat_model(name, temperature=temperature), _explained
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"--model {name}: {str(error).splitlines()[0]}") from error
    from amc_agents.models.embedded import EmbeddedChatModel, model_folder

    model_folder(name)
    return EmbeddedChatModel(model=name, temperature=temperature), None


def _base_folder(name: str) -> tuple[Path, bool]:
    """The folder of a base model, and whether it has the embedded model's layout."""
    import json

    from amc_agents.models.embedded import model_folder

    folder = model_folder(name)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return folder, tokenizer["model"]["type"] == "WordLevel"


def _explained(task: Task) -> Mapping[str, Any]:
    return {"messages": [("system", RULES), ("user", task.instruction)]}


RULES = """\
You craft items in a text world. Each turn, answer with one line `Thought: ...` (optional) and one line `Action: ...`.
An action is one of:
get AMOUNT ITEM
craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM
inventory
Use one of the listed crafting commands word for word, with the amounts that it says; what no command makes can be
fetched with `get`."""
