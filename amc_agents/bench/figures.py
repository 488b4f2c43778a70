"""The style that all pictures share, and the parts of matplotlib that they use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amc_agents.errors import MissingExtra

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
