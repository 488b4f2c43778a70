"""`amc train verdict`: train a critic of single decisions on collected trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.shared_options import filled, with_settings
from amc_agents.cli.train import base_folder
from amc_agents.errors import ConfigurationError
from amc_agents.training.settings import VerdictTrainingSettings

if TYPE_CHECKING:
    from amc_agents.training.verdict.labelling import Labeller


@with_settings(VerdictTrainingSettings)
def verdict(
    flags: Mapping[str, Any],
    data: Annotated[Path, typer.Option(help="Folder that `amc collect` wrote.")],
    out: Annotated[Path, typer.Option(help="New folder for the model, written atomically.")],
    base: Annotated[
        str, typer.Option(help="Base model: the name of a shipped model, or a transformers folder.")
    ] = "crafting",
    labels: Annotated[
        str,
        typer.Option(
            help='Labels of steps: "crafting" (from its planner), "outcome" (cautious; any world), or '
            "your own module:function."
        ),
    ] = "crafting",
    candidates: Annotated[
        int,
        typer.Option(
            min=0,
            help="Actions sampled from --policy at every state as candidates; 0: only the steps of the data. With "
            "candidates, labels must not depend on the outcome.",
        ),
    ] = 0,
    policy: Annotated[
        str, typer.Option(help="Policy that samples the candidates; like --model of `amc collect`.")
    ] = "crafting",
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", help="Sampling temperature of the candidates; repeatable. Default: 1."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a critic that judges an action GOOD or BAD (LAC), and print how well it picks among candidates."""
    import asyncio

    from rich.progress import Progress as Bar

    from amc_agents.bench.plan import ComparisonPlan, policy_model
    from amc_agents.training.dataset import read_trajectories
    from amc_agents.training.verdict.labelling import labelled, sample_options
    from amc_agents.training.verdict.picking import print_metrics
    from amc_agents.training.verdict.train_verdict import (
        EMBEDDED,
        VerdictTrainingProgress,
        train_verdict,
    )

    labeller = _labeller(labels)
    folder, embedded = base_folder(base)
    settings = filled(EMBEDDED if embedded else VerdictTrainingSettings(), flags)
    trajectories = read_trajectories(data)
    console = console_beside(as_json)
    console.print(f"{len(trajectories)} trajectories from {data}")
    with Bar(console=console) as bar:
        options = None
        if candidates:
            model, inputs = policy_model(policy, 1.0), ComparisonPlan((), 1, model=policy).input_of
            line = bar.add_task("sampling candidates", total=len(trajectories))
            options = asyncio.run(
                sample_options(
                    trajectories, model, k=candidates, temperatures=temperatures or [1.0], seed=settings.seed,
                    inputs=inputs, progress=lambda done: bar.update(line, completed=done),
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
    if as_json:
        print_json({"out": out, "metrics": checkpoint.metrics})


def _labeller(name: str) -> Labeller:
    from importlib import import_module

    from amc_agents.training.verdict.labelling import CraftingLabels, OutcomeLabels

    if name == "crafting":
        return CraftingLabels()
    if name == "outcome":
        return OutcomeLabels()
    module, _, function = name.partition(":")
    try:
        labeller: Labeller = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f'--labels {name}: expected "crafting", "outcome" or module:function, got {error}'
        ) from error
    return labeller
