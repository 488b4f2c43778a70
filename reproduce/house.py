"""Draw the rooms of the package and their imports: `python reproduce/house.py docs/house.png`.

An arrow goes from a room to a room that it imports; its width grows with the number of imports. The script also prints
imports that do not run downward, and circles among modules.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import networkx  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FLOORS: tuple[dict[str, float], ...] = (
    {"root modules": 5},
    {"concurrency": 5},
    {"smc": 1.4, "envs": 5, "models": 8.6},
    {"config": 3.4},
    {"critics": 6.6},
    {"decisions": 3.4},
    {"runtime": 5},
    {"population": 1.2, "lac": 3.7, "pnlc": 6.2, "psrl": 8.7},
    {"training": 6.6},
    {"bench": 5},
    {"operations": 5},
    {"cli": 5},
)
"""Floors from the bottom to the top: each room's horizontal place, from 0 to 10."""
CONTENTS = {
    "root modules": "types, errors, files, usage",
    "concurrency": "loops, threads, gather",
    "smc": "weights, resampling",
    "envs": "worlds that fork",
    "models": "local chat models",
    "critics": "value, verdict, goal, judge",
    "config": "settings, file",
    "decisions": "shared by LAC, PNLC, PSRL",
    "runtime": "LangGraph, LangChain",
    "population": "AMC",
    "lac": "LLM actor-critic",
    "pnlc": "natural-language critic",
    "psrl": "posterior sampling, IDS",
    "training": "logs to critics",
    "bench": "comparisons",
    "operations": "logs, advice, rollout, servers",
    "cli": "the amc command",
}


def modules(package: Path) -> dict[str, Path]:
    """Dotted name -> file of every module, except the doors (they only re-export names) and `testing`."""
    named = {path.relative_to(package): path for path in package.rglob("*.py")}
    return {
        ".".join((package.name, *relative.with_suffix("").parts)): path
        for relative, path in named.items()
        if relative.as_posix() != "__init__.py" and relative.parts[0] != "testing"
    }


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a module imports, those inside functions and TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            target = next((part for part in (name, name.rpartition(".")[0]) if part in known), None)
            if target:
                yield target


def room_of(module: str) -> str:
    """`amc_agents.lac.decision` -> `lac`; the two modules of settings form a room, above `smc` with its schedules."""
    parts = module.split(".")
    if parts[1:] == ["decisions"]:
        return "decisions"
    if parts[1:] in (["config"], ["settings"]):
        return "config"
    return parts[1] if len(parts) > 2 else "root modules"


def house(package: Path) -> tuple[networkx.DiGraph[str], Counter[tuple[str, str]]]:
    """The graph of modules, and the number of imports between rooms."""
    known = modules(package)
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_edges_from((name, target) for name, path in known.items() for target in set(imports(path, known)))
    between = Counter((room_of(a), room_of(b)) for a, b in graph.edges if room_of(a) != room_of(b))
    return graph, between


def draw(between: Counter[tuple[str, str]], out: Path) -> None:
    """Draw the floors. Arrows to the root modules, which every room imports, are left out."""
    figure, axes = plt.subplots(figsize=(9.5, 9.5))
    places = {room: (x, float(level)) for level, rooms in enumerate(FLOORS) for room, x in rooms.items()}
    for (source, target), count in sorted(between.items()):
        if target != "root modules":
            arrow(axes, places[source], places[target], count)
    for room, (x, y) in places.items():
        box = FancyBboxPatch((x - 1.1, y - 0.26), 2.2, 0.52, boxstyle="round,pad=0.02")
        box.set(facecolor="#eef3f8", edgecolor="#44607a", zorder=3)
        axes.add_patch(box)
        axes.text(x, y + 0.08, room, ha="center", va="center", fontsize=9.5, fontweight="bold", zorder=4)
        axes.text(x, y - 0.13, CONTENTS[room], ha="center", va="center", fontsize=7.5, color="#44607a", zorder=4)
    axes.set(xlim=(0, 10), ylim=(-0.5, len(FLOORS) - 0.5))
    axes.axis("off")
    figure.savefig(out, dpi=110, bbox_inches="tight")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], count: int) -> None:
    """Draw one arrow, red if it does not run downward."""
    wrong = start[1] <= end[1]
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=8,
            connectionstyle="arc3,rad=0.12",
            linewidth=0.3 + 0.4 * count**0.5,
            color="#c0392b" if wrong else "#8fa8bf",
            alpha=0.6,
            shrinkA=14,
            shrinkB=14,
            zorder=1,
        )
    )


def main() -> None:
    """Draw, and print what breaks the order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the picture")
    graph, between = house(Path("amc_agents"))
    draw(between, parser.parse_args().out)
    level_of = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    upward = [pair for pair in between if level_of[pair[0]] <= level_of[pair[1]]]
    circles = [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    print(f"{graph.number_of_nodes()} modules; imports that do not run downward: {upward}; circles: {circles}")


if __name__ == "__main__":
    main()
