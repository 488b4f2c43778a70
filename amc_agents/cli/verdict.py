"""`amc train verdict`: from play to a critic of single decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.train import _base_folder, _policy
from amc_agents.errors import ConfigurationError

if TYPE_CHECKING:
    from amc_agents.training.verdict.labels import Labeller


def verdict(
    data: Annotated[Path, typer.Option(help="Folder that `amc collect` wrote.")],
    out: Annotated[Path, typer.Option(help="New folder for the model, written whole or not at all.")],
    base: Annotated[
        str, typer.Option(help="The model to train on top of: a shipped one's name, or a transformers folder.")
    ] = "crafting",
    labels: Annotated[
        str,
        typer.Option(
            help='How steps are labelled: "crafting" (by its planner), "outcome" (any world; cautious), or '
            "module:function of your own."
        ),
    ] = "crafting",
    candidates: Annotated[
        int,
        typer.Option(
            min=0,
            help="Actions sampled from --policy at every state, to be judged against each other; 0: the steps that "
            "were made alone. The labels must not need an outcome.",
        ),
    ] = 0,
    policy: Annotated[str, typer.Option(help="Who samples the candidates; as --model of `amc collect`.")] = "crafting",
    temperatures: Annotated[
        list[float] | None, typer.Option("--temperature", help="Of the candidates; repeatable. Default: 1.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data. Default: the base's.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the base's.")] = None,
    device: Annotated[str, typer.Option(help='"cpu", "cuda", ...')] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of candidates, initial weights, split and order.")] = 0,
) -> None:
    """Train a critic that says GOOD or BAD of an action (LAC), and print how well it picks among candidates."""
    import asyncio
    from dataclasses import replace

    from rich.progress import Progress as Bar

    from amc_agents.cli.console import PlainConsole
    from amc_agents.training.dataset import read_trajectories
    from amc_agents.training.verdict.data import labelled, sample_options
    from amc_agents.training.verdict.metrics import print_metrics
    from amc_agents.training.verdict.training import (
        EMBEDDED,
        VerdictTrainingProgress,
        VerdictTrainingSettings,
        train_verdict,
    )

    labeller = _labeller(labels)
    folder, embedded = _base_folder(base)
    chosen: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate}
    settings = replace(
        EMBEDDED if embedded else VerdictTrainingSettings(),
        device=device, seed=seed,
        **{name: given for name, given in chosen.items() if given is not None},
    )  # fmt: skip
    trajectories = read_trajectories(data)
    console = PlainConsole()
    console.print(f"{len(trajectories)} trajectories from {data}")
    with Bar(console=console) as bar:
        options = None
        if candidates:
            model, inputs = _policy(policy, 1.0)
            line = bar.add_task("sampling candidates", total=len(trajectories))
            options = asyncio.run(
                sample_options(
                    trajectories, model, k=candidates, temperatures=temperatures or [1.0], seed=seed, inputs=inputs,
                    progress=lambda done: bar.update(line, completed=done),
                )
            )  # fmt: skip
        line = bar.add_task("labelling", total=len(trajectories))
        judged = labelled(trajectories, labeller, options, progress=lambda done: bar.update(line, completed=done))
        line = bar.add_task("training")

        def show(progress: VerdictTrainingProgress) -> None:
            bar.update(line, completed=progress.step, total=progress.steps)

        checkpoint = train_verdict(folder, judged, out, settings, progress=show)
    print_metrics(checkpoint.metrics, console)
    console.print(f"Written: {out}. Serve it (amc serve policy, or vLLM) and use verdict:http://HOST:PORT?model=NAME")


def _labeller(name: str) -> Labeller:
    from importlib import import_module

    from amc_agents.training.verdict.labels import CraftingLabels, OutcomeLabels

    if name == "crafting":
        return CraftingLabels()
    if name == "outcome":
        return OutcomeLabels()
    module, _, function = name.partition(":")
    try:
        found: Labeller = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f'--labels {name}: expected "crafting", "outcome" or module:function, got {error}'
        ) from error
    return found
