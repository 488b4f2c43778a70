"""Pictures of an exploration: regret, the two surrogate statistics, and a sweep over a temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.plots import FAINT, INK, Figure, MaxNLocator, draw_grid, hide_frame, new_figure, save_figure
from amc_agents_exploration.comparison.measures import Curve
from amc_agents_exploration.comparison.report import ExplorationResults, ExplorerResult

COLOURS = ("#33418c", "#c98a00", "#2a9d8f", "#b5446e", "#5b7f2f", "#7a5fb0", "#8a97a3", "#a34e20")
STYLES = ("-", "--", "-.", ":")


def regret_curves(results: ExplorationResults, path: str | Path, *, title: str = "") -> Path:
    """Draw the cumulative regret and the regret of each episode, with a band of one standard error."""
    figure, panels = _panels(results, title, 2)
    for explorer, style in _styled(results.explorers):
        _draw(panels[0], explorer.cumulative_regret, label=explorer.name, **style)
        _draw(panels[1], explorer.episode_regret, **style)
    panels[0].set_ylabel("cumulative regret", color=INK)
    panels[1].set_ylabel("regret of the episode", color=INK)
    for axes in panels:
        axes.set_xlabel("episode", color=INK)
        axes.set_ylim(bottom=0)
    return _save(figure, path, "Lower and flatter is better; shaded: one standard error over trials")


def surrogates(results: ExplorationResults, path: str | Path, *, title: str = "") -> Path:
    """Draw suffix failure frequency and scaled minimum action frequency, by episode and against each other.

    As in LLM-PSRL, figures 11 to 13. The paper does not say which period its scatter plots show. Here, suffix failures
    are those of the second half, and the minimum frequency is that of all episodes.
    """
    figure, panels = _panels(results, title, 3)
    half = results.settings["n_episodes"] // 2
    for explorer, style in _styled(results.explorers):
        _draw(panels[0], explorer.suffix_failure, label=explorer.name, **style)
        _draw(panels[1], explorer.minimum_frequency, **style)
        panels[2].errorbar(
            [explorer.minimum_frequency.mean[-1]], [explorer.suffix_failure.mean[half]],
            xerr=_error(explorer.minimum_frequency, -1), yerr=_error(explorer.suffix_failure, half),
            fmt="o", color=style["color"], markersize=8, elinewidth=2,
        )  # fmt: skip
    for axes, label in zip(panels, ("suffix failure frequency", "min. action frequency, scaled"), strict=False):
        axes.set_xlabel("episode", color=INK)
        axes.set_ylabel(label, color=INK)
        axes.set_ylim(-0.02, 1.02)
    panels[2].set_xlabel(f"min. action frequency at {results.settings['n_episodes']}, scaled", color=INK)
    panels[2].set_ylabel(f"suffix failure frequency at {half + 1}", color=INK)
    panels[2].set_xlim(-0.02, 1.02)
    panels[2].set_ylim(-0.02, 1.02)
    return _save(figure, path, "Suffix failure: no optimal episode from here on. Shaded and bars: one standard error")


def temperature_sweep(results: ExplorationResults, path: str | Path, *, title: str = "") -> Path | None:
    """Draw the total regret over the temperature; None if no agent was played at two temperatures or more.

    Agents without a temperature are horizontal lines.
    """
    swept = {explorer.agent for explorer in results.explorers if explorer.temperature is not None}
    if max((sum(explorer.agent == agent for explorer in results.explorers) for agent in swept), default=0) < 2:
        return None
    figure, (axes,) = _panels(results, title, 1)
    colours = cycle(COLOURS)
    for agent in sorted(swept):
        points = sorted((explorer.temperature, explorer.total_regret) for explorer in results.explorers
                        if explorer.agent == agent and explorer.temperature is not None)  # fmt: skip
        axes.errorbar(
            [temperature for temperature, _ in points], [regret.mean for _, regret in points],
            yerr=[regret.standard_error or 0.0 for _, regret in points],
            marker="o", markersize=8, linewidth=2, color=next(colours), label=agent,
        )  # fmt: skip
    for explorer in results.explorers:
        if explorer.temperature is None:
            regret = explorer.total_regret.mean
            axes.axhline(regret, color=next(colours), linestyle="--", linewidth=2, label=explorer.name)
    axes.set_xlabel("temperature of the role that explores", color=INK)
    axes.set_ylabel(f"regret after {results.settings['n_episodes']} episodes", color=INK)
    axes.set_ylim(bottom=0)
    return _save(figure, path, "Bars: one standard error over trials")


def _panels(results: ExplorationResults, title: str, n_panels: int) -> tuple[Figure, Sequence[Any]]:
    figure = new_figure(5.2 * n_panels + (2 if n_panels == 1 else 0), 5.2)
    panels = figure.subplots(1, n_panels, squeeze=False)[0]
    for axes in panels:
        draw_grid(axes, "both")
        hide_frame(axes, ("top", "right"))
    figure.text(0.02, 0.935, title or results.settings["world"], fontsize=15, weight="bold", color=INK)
    return figure, panels


def _styled(explorers: Sequence[ExplorerResult]) -> list[tuple[ExplorerResult, dict[str, Any]]]:
    styles = [{"color": colour, "linestyle": style} for style in STYLES for colour in COLOURS]
    return list(zip(explorers, cycle(styles), strict=False))


def _draw(axes: Any, values: Curve, *, label: str | None = None, **style: Any) -> None:
    mean = np.array(values.mean)
    episodes = np.arange(1, len(mean) + 1)
    # Mark the episodes if they are few.
    axes.plot(episodes, mean, linewidth=2, label=label, marker="o" if len(mean) <= 12 else "", **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if values.standard_error is not None:
        error = np.array(values.standard_error)
        axes.fill_between(episodes, mean - error, mean + error, color=style["color"], alpha=0.2, linewidth=0)


def _error(values: Curve, episode: int) -> float:
    return 0.0 if values.standard_error is None else values.standard_error[episode]


def _save(figure: Figure, path: str | Path, note: str) -> Path:
    """Add a note and a legend below the panels, and write the figure."""
    figure.text(0.02, 0.885, note, fontsize=10.5, color=FAINT)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    # About 12 letters fit into an inch, and a handle takes the space of 6.
    n_columns = max(1, min(4, int(figure.get_figwidth() * 12 / (6 + max(map(len, labels))))))
    n_rows = math.ceil(len(labels) / n_columns)
    figure.tight_layout(rect=(0, 0.03 + 0.045 * n_rows, 1, 0.88))
    figure.legend(handles, labels, loc="lower center", ncols=n_columns, frameon=False)
    return save_figure(figure, path)
