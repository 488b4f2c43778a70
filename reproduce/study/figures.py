"""Figures of the study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from reproduce.study.settings import SIZES
from reproduce.study.table_rows import SAMPLING

LINES = {"best-of": ("Best-of-N", "#7f7f7f", "o"), "amc": ("AMC", "#1f77b4", "s")}
CURVES = {"best-of": "best_of_n", "amc": "amc"}
"""Keys of `curve.curve`."""


def draw_curve(sizes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the oracle's pick and the top 5 over N, from the rows of `curve.curve`."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (regime, title) in zip(figure.subplots(1, 2, sharey=True), SAMPLING.items(), strict=True):
        rows = [row for row in sizes if row["regime"] == regime]
        for kind, (label, colour, marker) in LINES.items():
            for metric, style in (("oracle", "-"), ("top5", ":")):
                points = [(row["n"], row[CURVES[kind]][metric]) for row in rows]
                if points:
                    axes.errorbar(
                        [size for size, _ in points], [score["mean"] for _, score in points],
                        yerr=[1.96 * score["standard_error"] for _, score in points], color=colour, linestyle=style,
                        marker=marker, capsize=2, label=f"{label}, {'oracle pick' if metric == 'oracle' else 'top 5'}",
                    )  # fmt: skip
        _finish(axes, title, "N, particles")
        axes.set_xticks(SIZES)
    figure.savefig(path, dpi=140)


def draw_cost(results: Mapping[str, Any], path: Path) -> None:
    """Draw the oracle's pick over model calls, and over computed tokens of policy and critic.

    Best-of-N pays for no critic here, because picking by known rewards needs none.
    """
    figure = Figure(figsize=(9, 6.6), layout="constrained")
    grid = figure.subplots(2, 2, sharey=True)
    for row, (regime, title) in zip(grid, SAMPLING.items(), strict=True):
        for axes, (heading, spent) in zip(row, _SPENT.items(), strict=True):
            for kind, (label, colour, marker) in LINES.items():
                names = [f"{regime}-{kind}-{size}" for size in SIZES if f"{regime}-{kind}-{size}" in results["scores"]]
                axes.plot(
                    [spent(results["costs"][name] | (_NO_CRITIC if kind == "best-of" else {})) for name in names],
                    [results["scores"][name]["oracle"]["mean"] for name in names],
                    color=colour, marker=marker, label=label,
                )  # fmt: skip
            for name, label in ((f"{regime}-react", "ReAct"), ("react-greedy", "ReAct, greedy")):
                if name in results["scores"]:
                    mark = "x" if label == "ReAct" else "+"
                    score = results["scores"][name]["oracle"]["mean"]
                    axes.plot([spent(results["costs"][name])], [score], mark, color="#d62728", label=label)
            _finish(axes, title, heading)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=140)


_NO_CRITIC = {"critic_calls": 0.0, "critic_tokens": 0.0, "critic_cached_tokens": 0.0}
_SPENT: Mapping[str, Callable[[Mapping[str, float]], float]] = {
    "model calls of policy and critic, a task": lambda cost: cost["policy_calls"] + cost["critic_calls"],
    "tokens a task: read anew and written, critic's too": lambda cost: (
        sum(cost[f"policy_{kind}_tokens"] for kind in ("input", "output"))
        - cost["policy_cached_tokens"]
        + cost["critic_tokens"]
        - cost["critic_cached_tokens"]
    ),
}


def _finish(axes: Any, title: str, heading: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(heading)
    axes.set_ylabel("mean return")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:  # a regime may have no runs yet
        axes.legend(fontsize=8)
