"""`amc calibrate`: fit a map from a critic's values to your own outcomes."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json

if TYPE_CHECKING:
    from amc_agents.cli.console import PlainConsole
    from amc_agents.training.critic_calibration import CalibrationGain


class Map(StrEnum):
    """Kind of map."""

    auto = "auto"
    affine = "affine"
    isotonic = "isotonic"
    logistic = "logistic"


def calibrate(
    critic: Annotated[str, typer.Argument(help="The critic, such as 'classify:http://host:8000?label=0'.")],
    data: Annotated[
        Path, typer.Option(help="Folder that `amc import` or `amc collect` wrote; not what the critic was trained on.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write: --critic calibrated:FOLDER uses it.")],
    kind: Annotated[
        Map,
        typer.Option(
            help="The map. auto: isotonic, or logistic (two outcomes) or affine (more), by the cross-fitted error."
        ),
    ] = Map.auto,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit a map from a critic's values to your own outcomes, and print what it gains (needs the extra: train)."""
    from amc_agents.training.critic_calibration import calibrate_critic
    from amc_agents.training.scoring import ScoringProgress

    console = console_beside(as_json)
    with console.status("scoring") as line:

        def show(progress: ScoringProgress) -> None:
            line.update(f"scored {progress.trajectories:,} of {progress.n_trajectories:,} trajectories")

        gain = calibrate_critic(critic, data, out, kind=kind.value, seed=seed, progress=show)
    _print_gain(gain, console)
    console.print(f"Written: {out}. The calibrated critic: calibrated:{out}", soft_wrap=True)
    if as_json:
        print_json({"critic": f"calibrated:{out}", "helps": gain.helps, **asdict(gain)})


def _print_gain(gain: CalibrationGain, console: PlainConsole) -> None:
    from rich.table import Table

    console.print(gain.sentence)
    title = f"{gain.kind} calibration, cross-fitted over {gain.n_tasks:,} tasks ({gain.n_states:,} states)"
    table = Table("", "mean", "95% interval", title=title)
    for label, figures in (
        ("squared error", (gain.squared_before, gain.squared_after, gain.squared_change)),
        ("log loss", (gain.log_loss_before, gain.log_loss_after, gain.log_loss_change)),
        ("AUC at the same step", (gain.auc_before, gain.auc_after)),
    ):
        for when, figure in zip(("before", "after", "change"), figures, strict=False):
            if figure is not None:
                table.add_row(f"{label}, {when}", f"{figure.mean:.4f}", f"{figure.low:.4f} to {figure.high:.4f}")
    console.print(table)
