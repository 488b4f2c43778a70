"""Train a policy on the trajectories that a search found.

python -m reproduce.distill.train --data DATA --base crafting --out POLICY
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.train import base_folder, training_bar

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def distill(
    data: Annotated[Path, typer.Option(help="Folder that `collect.py` of this folder or `amc collect` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the policy: --model uses it.")],
    base: Annotated[
        str, typer.Option(help="The policy: the name of a shipped model, or a transformers folder.")
    ] = "crafting",
    beta: Annotated[
        float | None,
        typer.Option(
            help="Independent trajectories are weighted by exp(return / beta); those of a search count equally. "
            "Default: 0.1."
        ),
    ] = None,
    success: Annotated[
        float | None, typer.Option(help="Tasks without a return of at least this are left out. Default: 1.")
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="World whose rules the policy reads as a system message. Default: none.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data. Default: 3.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate. Default: depends on the base.")
    ] = None,
    lora_rank: Annotated[
        int | None,
        typer.Option(min=0, help="Rank of the LoRA adapter; 0: train all weights. Default: depends on the base."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Trajectories per step. Default: 12.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Leave out longer trajectories. Default: the base's context.")
    ] = None,
    save_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints to resume from. Default: an epoch.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted training.")] = False,
    device: Annotated[str, typer.Option(help='"cpu", "cuda", ...')] = "cpu",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Number type of the policy.")] = "float32",
    seed: Annotated[int, typer.Option(min=0, help="Seed of adapter, split and order.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a policy to imitate the trajectories that a search found, so that a single run is better.

    Compare it with the policy before: amc bench --methods react,react-greedy --model FOLDER
    """
    from amc_agents.envs.registry import world as registered
    from reproduce.distill.distillation import EMBEDDED, DistillSettings
    from reproduce.distill.distillation import distill as trained_by

    folder, embedded = base_folder(base)
    given: dict[str, Any] = {
        "beta": beta, "success": success, "epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size,
        "max_tokens": max_tokens, "save_steps": save_steps, "device": device, "dtype": dtype, "seed": seed,
        "system": None if world is None else registered(world).rules,
    }  # fmt: skip
    settings = replace(
        EMBEDDED if embedded else DistillSettings(),
        **{name: value for name, value in given.items() if value is not None},
    )
    if lora_rank is not None:
        settings = replace(settings, lora_rank=lora_rank or None)
    console = console_beside(as_json)
    with training_bar(console) as show:
        done = trained_by(
            folder, data, out, settings, progress=show, resume=resume,
            warn=lambda warning: console.print(f"Warning: {warning}", soft_wrap=True),
        )  # fmt: skip
    metrics = done.metrics
    console.print(
        f"{metrics['trajectories']} trajectories of {metrics['tasks']} tasks. Loss on held-out tasks: "
        f"{metrics['held_out_loss_before']:.4g} before, {metrics['held_out_loss']:.4g} after.",
        soft_wrap=True,
    )
    model = out if embedded else f"hf:{out}"
    console.print(
        f"Written: {out}. Try it: amc bench --model {model} --methods react,react-greedy --out RESULTS", soft_wrap=True
    )
    if as_json:
        print_json({"out": str(out), "metrics": metrics})


if __name__ == "__main__":
    app()
