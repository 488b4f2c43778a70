"""Pictures of a comparison: the particles of one run, and the scores of all methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.report import Results
from amc_agents.branches import Branch, branches
from amc_agents.errors import MissingExtra
from amc_agents.run import Run
from amc_agents.types import FloatArray

try:
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise MissingExtra("matplotlib", "bench") from error

__all__ = [
    "FAINT",
    "INK",
    "Figure",
    "Line2D",
    "LineCollection",
    "LinearSegmentedColormap",
    "MaxNLocator",
    "Normalize",
    "PowerNorm",
    "ScalarMappable",
    "draw_grid",
    "hide_frame",
    "new_figure",
    "save_figure",
]

INK, FAINT, GRID = "#22303c", "#8a97a3", "#e3e8ec"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; sizes in inches, 100 pixels each."""
    return Figure(figsize=(width, height), dpi=100, facecolor="white")


def hide_frame(axes: Any, sides: Sequence[str]) -> None:
    """Hide lines of the frame."""
    for side in sides:
        axes.spines[side].set_visible(False)


def draw_grid(axes: Any, direction: str) -> None:
    """Draw a light grid behind the data, without ticks; `direction` is "x", "y" or "both"."""
    axes.grid(axis=direction, color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure, creating its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


SUCCESS = "#f5b301"
VALUES = LinearSegmentedColormap.from_list(
    "values", ["#33418c", "#3f7fb5", "#55b6a3", "#9fd35f", "#f2d13c"]
).with_extremes(bad="#b6bcc4")
"""Grey marks an unknown value: the critic or the particle failed."""
_PIECES = 40
"""Number of straight pieces of a drawn line."""


def branches_of(run: Run, *, success: float = 1.0) -> list[Branch]:
    """Lay out the family tree of a run's particles."""
    trajectories = run.population.trajectories
    return branches(
        run.history,
        [len(trajectory.steps) for trajectory in trajectories],
        [trajectory.return_ for trajectory in trajectories],
        [float(value) for value in run.population.values],
        success=success,
    )


def genealogy(run: Run, path: str | Path, *, title: str = "", success: float = 1.0) -> Path:
    """Draw one run's particles over its steps, coloured by value: which were dropped, multiplied or successful.

    Args:
        run: a run with at least one weighing point and a single round.
        path: where to write the PNG of 1200 x 700 pixels.
        title: first line of the picture.
        success: minimum return that counts as a success.
    """
    branches = branches_of(run, success=success)
    points = [point.step for point in run.history if point.ancestors is not None]
    figure = new_figure(12, 7)
    axes = figure.add_axes((0.055, 0.15, 0.83, 0.70))
    known = [branch.value for branch in branches if not math.isnan(branch.value)] + [0.0]
    # Values are small until the goal is near: the root spreads them over the colours.
    norm = PowerNorm(0.5, min(known), max([*known, success]))
    bend = _bend(branches)
    for step in points:
        axes.axvspan(step, step + bend, color="#eef1f4", lw=0, zorder=0)
    for branch in branches:
        _draw(axes, branch, norm, bend)
    last = max(branch.end for branch in branches)
    rows = max(branch.row for branch in branches)
    axes.set_xlim(-0.3, last + 0.6)
    axes.set_ylim(rows + 0.8, -0.7)
    axes.set_yticks([])
    axes.set_xticks(range(0, int(last) + 1, 2))
    axes.set_xlabel("step of the agent", color=INK)
    axes.set_ylabel(f"{rows + 1} particles", color=INK)
    hide_frame(axes, ("top", "right", "left"))
    for step in points:
        dropped = sum(branch.end == step and branch.ending == "dropped" for branch in branches)
        axes.text(step, -0.6, f"resample:\n{dropped} dropped", va="bottom", fontsize=9, color=INK)
    successes = sum(trajectory.return_ >= success for trajectory in run.population.trajectories)
    figure.text(0.055, 0.945, title or "The particles of one AMC run", fontsize=15, weight="bold", color=INK)
    figure.text(0.055, 0.905, _subtitle(successes, len(run.population.trajectories)), fontsize=10.5, color=FAINT)
    bar = figure.colorbar(ScalarMappable(norm, VALUES), cax=figure.add_axes((0.905, 0.15, 0.014, 0.70)))
    bar.set_label("value: return so far + critic's prediction of the rest", color=INK)
    bar.outline.set_visible(False)
    figure.legend(handles=_legend(), loc="lower center", ncols=4, frameon=False, bbox_to_anchor=(0.47, 0.0))
    return save_figure(figure, path)


def method_scores(results: Results, path: str | Path, *, title: str = "") -> Path:
    """Draw the oracle's pick, the deployable pick and the mean particle of each method, with 95% intervals."""
    kinds = {"oracle": ("oracle's pick", "#33418c", "o"), "deployable": ("deployable pick", "#2a9d8f", "s"),
             "mean_distinct": ("mean over distinct particles", "#c98a00", "D")}  # fmt: skip
    figure = new_figure(12, 0.75 * len(results.methods) + 2.6)
    axes = figure.add_subplot()
    for offset, (metric, (label, colour, marker)) in zip((-0.2, 0.0, 0.2), kinds.items(), strict=True):
        points = [
            (row, method.scores[metric])
            for row, method in enumerate(results.methods)
            if metric in method.scores and not (metric == "mean_distinct" and method.scores_one)
        ]
        if not points:
            continue
        axes.errorbar(
            [score.mean for _, score in points],
            [row + offset for row, _ in points],
            xerr=[1.96 * (score.standard_error or 0.0) for _, score in points],
            fmt=marker, color=colour, ecolor=colour, elinewidth=2, capsize=0, markersize=8, label=label,
        )  # fmt: skip
    axes.set_yticks(range(len(results.methods)), [method.label for method in results.methods], fontsize=11)
    axes.set_ylim(len(results.methods) - 0.4, -0.6)
    lowest = min(score.mean for method in results.methods for score in method.scores.values())
    axes.set_xlim(left=min(0.0, lowest) - 0.015)
    draw_grid(axes, "x")
    hide_frame(axes, ("top", "right", "left"))
    tasks = max(score.tasks for method in results.methods for score in method.scores.values())
    axes.set_xlabel(f"mean return over {tasks} tasks; bars: 95% intervals (1.96 standard errors)", color=INK)
    axes.set_title(title or "Methods", loc="left", fontsize=15, weight="bold", color=INK, pad=34)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, borderaxespad=0.2)
    figure.tight_layout()
    return save_figure(figure, path)


def _draw(axes: Any, branch: Branch, norm: Normalize, bend: float) -> None:
    steps, rows = _path(branch, bend)
    dropped = branch.ending == "dropped"
    before = branch.value if branch.value_before is None else branch.value_before
    # Between two weighing points the colour changes from one value to the next.
    values = before + (branch.value - before) * np.linspace(0, 1, len(steps) - 1) ** 2
    corners = np.stack([steps, rows], axis=1)
    # Each piece overlaps the next, which hides the seams.
    ends = np.concatenate([corners[2:], corners[-1:]])
    colours = VALUES(norm(values))
    if dropped:
        colours[:, :3] = 0.6 + 0.4 * colours[:, :3]
    lines = LineCollection(
        list(np.stack([corners[:-1], ends], axis=1)), colors=colours, capstyle="butt",
        linewidths=2.2 if dropped else 3.4, zorder=2 if dropped else 3,
    )  # fmt: skip
    axes.add_collection(lines)
    marker: dict[str, Any] | None = {
        "continued": None,
        "dropped": {"marker": "x", "color": FAINT, "s": 34, "linewidths": 1.6},
        "success": {"marker": "*", "color": SUCCESS, "edgecolors": INK, "s": 260, "linewidths": 0.9},
        "failure": {"marker": "o", "color": "white", "edgecolors": INK, "s": 36, "linewidths": 1.3},
    }[branch.ending]
    if marker is not None:
        axes.scatter([branch.end], [branch.row], zorder=5, **marker)


def _path(branch: Branch, bend: float) -> tuple[FloatArray, FloatArray]:
    """Return steps and rows along a branch: a smooth turn from the ancestor's row, then a straight line."""
    steps = np.linspace(branch.start, branch.end, _PIECES + 1)
    if branch.from_row is None:
        return steps, np.full(len(steps), float(branch.row))
    progress = np.clip((steps - branch.start) / bend, 0.0, 1.0)
    smooth = progress * progress * (3 - 2 * progress)
    return steps, branch.from_row + (branch.row - branch.from_row) * smooth


def _bend(branches: Sequence[Branch]) -> float:
    """Return the steps that a fork takes to reach its row: less than the shortest branch."""
    lengths = [branch.end - branch.start for branch in branches if branch.from_row is not None]
    return float(min([1.2, *(0.9 * length for length in lengths if length > 0)]))


def _subtitle(successes: int, trajectories: int) -> str:
    return (
        f"One agent, run in parallel. Each resampling multiplies the critic's favourites and drops others; "
        f"in the end {successes} of {trajectories} succeed."
    )


def _legend() -> list[Line2D]:
    def mark(marker: str, label: str, **style: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, label=label, **style)

    return [
        Line2D([], [], color=VALUES(0.6), lw=3.2, label="particle"),
        mark("x", "dropped", color=FAINT, markersize=6, markeredgewidth=1.6),
        mark("*", "reached the goal", color=SUCCESS, markeredgecolor=INK, markersize=15),
        mark("o", "ended without it", color="white", markeredgecolor=INK, markersize=6),
    ]
