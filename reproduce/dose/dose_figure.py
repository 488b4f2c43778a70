"""The figure: AMC's gain over Best-of-M at equal policy tokens, over the critic's within-task AUC."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from amc_agents.bench.plots import FAINT, INK, draw_grid, hide_frame, new_figure, save_figure
from amc_agents.bench.statistics import Paired

COLUMNS = 3
FILE = Path("docs/results/dose/response.png")
FAMILIES = {
    "noise per state": ("#3f7fb5", "o", ("oracle", "state", "noise-state")),
    "noise per trajectory": ("#c0562f", "s", ("oracle", "trajectory", "noise-trajectory")),
}
MODELS = {"learned": ("learned value model", "*"), "shuffled": ("shuffled targets", "X"), "rollouts": ("V^pi", "D")}


class Point(Protocol):
    """A critic's place in the figure."""

    @property
    def critic(self) -> str:
        """Its name."""
        ...

    @property
    def auc(self) -> float:
        """Within tasks."""
        ...

    @property
    def gain(self) -> Paired:
        """AMC minus Best-of-M."""
        ...


def draw(curves: Mapping[str, Sequence[Point]]) -> None:
    """Draw a panel per world, three in a row, and the legend in the place after the last one."""
    n_rows = len(curves) // COLUMNS + 1
    figure = new_figure(15.0, 4.2 * n_rows)
    axes = figure.subplots(n_rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
    for each, (name, points) in zip(axes.flat, curves.items(), strict=False):
        _panel(each, points)
        each.set_title(name, loc="left", color=INK, fontsize=11)
    for row in axes:
        row[0].set_ylabel("success: AMC's pick minus Best-of-M's", color=INK)
    unused = axes.flat[len(curves) :]
    for each in unused:
        each.set_axis_off()
    for each in axes.flat[max(0, len(curves) - COLUMNS) : len(curves)]:
        each.set_xlabel("within-task AUC of the critic, unfinished states", color=INK)
        each.tick_params(labelbottom=True)
    shown: dict[str, Any] = {}
    for each in axes.flat:
        handles, labels = each.get_legend_handles_labels()
        shown |= zip(labels, handles, strict=True)
    unused[0].legend(shown.values(), shown.keys(), frameon=False, fontsize=10, loc="center")
    figure.tight_layout()
    save_figure(figure, FILE)


def _panel(axes: Any, points: Sequence[Point]) -> None:
    axes.axhline(0, color=FAINT, linewidth=1)
    for label, (colour, marker, names) in FAMILIES.items():
        of = [point for point in points if point.critic in names or point.critic.split("-")[0] in names]
        _bars(axes, sorted(of, key=lambda point: point.auc), colour, marker, label, "-")
    for point in points:
        kind = point.critic.split("-")[0]
        if kind in MODELS and not math.isnan(point.auc):
            label, marker = MODELS[kind]
            _bars(axes, [point], INK, marker, label, "")
    draw_grid(axes, "y")
    hide_frame(axes, ("top", "right", "left"))


def _bars(axes: Any, points: Sequence[Point], colour: str, marker: str, label: str, line: str) -> None:
    gains = [point.gain for point in points]
    middle = [gain.difference for gain in gains]
    below_and_above = [[gain.difference - gain.low for gain in gains], [gain.high - gain.difference for gain in gains]]
    axes.errorbar(
        [point.auc for point in points], middle, yerr=below_and_above, color=colour, marker=marker, linestyle=line,
        markersize=13 if marker == "*" else 6, linewidth=1.5, elinewidth=1, capsize=2, label=label,
    )  # fmt: skip
