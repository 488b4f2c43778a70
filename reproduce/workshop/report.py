"""Write the tables of docs/results/worlds/README.md from the packed test shards and evidence.json.

python reproduce/workshop/report.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from amc_agents.bench.methods import Method
from amc_agents.bench.records import RunResult
from amc_agents.bench.report import measured
from amc_agents.bench.statistics import estimate, paired
from reproduce.pages import write_parts
from reproduce.workshop.evidence import OUT
from reproduce.workshop.experiment import (
    AMC,
    BEST,
    CHOSEN,
    HIDDEN,
    METHODS,
    METRIC,
    ORACLE,
    RAW,
    SINGLE,
    WORLDS,
    chosen,
    packed,
    unpack,
)

PAGE = RAW.parent / "README.md"
LABELS = {
    SINGLE: "single run",
    BEST: "Best-of-15",
    AMC: "AMC, learned critic",
    ORACLE: "AMC, planner",
    HIDDEN: "AMC, rewards hidden",
}


def main() -> None:
    """Replace the text between the page's markers."""
    parts = {"picks": picks(), "deployable": deployable(), "dead-ends": dead_ends(), "signs": signs()}
    write_parts(PAGE, parts)


def finished(world: str) -> dict[str, tuple[Method, list[RunResult]]]:
    """Return the methods of a world whose test shards exist."""
    table = json.loads(CHOSEN.read_text(encoding="utf-8")).get(world, {})
    known = {name: chosen(world, name) for name in METHODS if name in table or (name == HIDDEN and AMC in table)}
    done = {name: (method, unpack(world, method)) for name, method in known.items() if packed(world, method).exists()}
    # Until the pool at a single run's own temperature is there, Best-of-15's pool stands in.
    return {SINGLE: done[BEST], **done} if BEST in done else {}


def picks() -> str:
    """Compare the oracle's picks."""
    lines = [
        "| world | method | tasks | temperature | score | minus Best-of-15 | policy calls | tokens |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for world in WORLDS:
        done = finished(world)
        for name in (SINGLE, BEST, AMC, ORACLE):
            if name in done:
                method, records = done[name]
                score = measured(records, METRIC.get(name, "oracle"))
                against = "" if name in (SINGLE, BEST) else difference(score, measured(done[BEST][1], "oracle"))
                share = 15 if name == SINGLE else 1
                lines.append(
                    f"| {world} | {LABELS[name]} | {len(score)} | {method.temperature:g} | {mean(score)} | {against} "
                    f"| {cost(records, 'policy_calls') / share:.0f} | {cost(records, 'tokens') / share:,.0f} |"
                )
    return "\n".join(lines)


def deployable() -> str:
    """Compare the picks made without any reward."""
    lines = [
        "| world | method | tasks | temperature | deployable pick | minus Best-of-15 | minus single run |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for world in WORLDS:
        done = finished(world)
        if HIDDEN not in done:
            continue
        alone = measured(done[SINGLE][1], "mean")
        base = measured(done[BEST][1], "deployable")
        for name in (BEST, HIDDEN):
            method, records = done[name]
            score = measured(records, "deployable")
            against = "" if name == BEST else difference(score, base)
            cells = [
                world,
                LABELS[name],
                str(len(score)),
                f"{method.temperature:g}",
                mean(score),
                against,
                difference(score, alone),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def dead_ends() -> str:
    """Show how often scripted policies get into a dead end."""
    table = json.loads(OUT.read_text(encoding="utf-8"))
    lines = [
        "| world | random: success | dead end | by the book: success | dead end |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for world in WORLDS:
        shares = table[world]["scripted"]
        cells = [
            f"{shares[act][key]:.2f}" for act in ("random_action", "by_the_book") for key in ("success", "dead_end")
        ]
        lines.append(f"| {world} | {' | '.join(cells)} |")
    return "\n".join(lines)


def signs() -> str:
    """Show what predicts success among trajectories that crafted the goal."""
    table = json.loads(OUT.read_text(encoding="utf-8"))
    names = ["fewer steps", "fewer refused actions", "words of the last turn", "value model", "planner"]
    lines = [
        f"| world | crafted the goal | success if crafted | {' | '.join(names)} |",
        f"| --- | ---: | ---: |{' ---: |' * len(names)}",
    ]
    for world in WORLDS:
        if entry := table[world].get("signs"):
            areas = entry["auc among those that crafted the goal"]
            cells = [f"{areas[name]:.3f}" if areas[name] is not None else "all succeed" for name in names]
            shares = [f"{entry[name]:.2f}" for name in ("crafted the goal", "success if crafted")]
            lines.append(f"| {' | '.join([world, *shares, *cells])} |")
    return "\n".join(lines)


def mean(score: Mapping[tuple[str, int], float]) -> str:
    """Format a mean with its standard error."""
    value = estimate(score)
    return f"{value.mean:.3f} ± {value.standard_error or 0:.3f}"


def difference(a: Mapping[tuple[str, int], float], b: Mapping[tuple[str, int], float]) -> str:
    """Format a paired difference, bold if its interval excludes 0."""
    gap = paired(a, b)
    text = f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
    return f"**{text}**" if gap.low > 0 or gap.high < 0 else text


def cost(records: Sequence[RunResult], name: str) -> float:
    """Average a cost over runs."""
    return float(np.mean([getattr(record.cost, name) for record in records]))


if __name__ == "__main__":
    main()
