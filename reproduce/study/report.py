"""Tables and figures of the study, from the shards that are done.

    python reproduce/study/report.py [--out docs/results/study]

Writes summary.md (a line for each world and regime), room.md (what an oracle gains), tables.md (by difficulty, and the
ablations at its end),
results.json, and for the hardest band curve.png (score over N) and cost.png (score over model calls and tokens).
Intervals are 95%: the first over tasks, each task's seeds averaged; the second over training seeds too, each of which
has value models of its own, and needs two of them. Where a table has one interval, it is the second where there is one.
With the same luck AMC plays the same trajectories with rewards hidden and seen (tests/bench/test_hidden_rewards.py):
the mean of both rows has the smaller error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablation_tables import ablation_tables, read_ablations
from amc_agents.bench.records import RunResult
from amc_agents.bench.statistics import estimate
from amc_agents.markdown import table
from budget import budget, budget_table
from curve import curve, curve_table
from figures import draw_cost, draw_curve
from finished import finished, finished_table
from populations import populations, populations_table
from results import Cells, difference, read, records
from room_tables import room, room_table
from settings import BANDS, FROM_SCRATCH, HOT, SHIPPED, TUNED, Shard
from strata import strata, strata_tables
from summary import summary_table
from table_rows import PARAMETERS, score

METRICS = {
    "oracle": "oracle's pick",
    "deployable": "deployable pick",
    "top5": "top 5",
    "mean": "mean particle",
    "mean_distinct": "mean, distinct",
}
ROWS = {
    "react": "ReAct",
    "react-greedy": "ReAct, greedy",
    "best-of-15": "Best-of-15",
    "smc-15": "SMC, rewards only",
    "amc-shuffled-15": "AMC, critic of shuffled targets",
    "amc-15-paper": "AMC, beta = 1 (the paper's)",
    "amc-15": "AMC",
    "amc-hidden-15": "AMC, rewards hidden",
    "amc-keep-15": "AMC, finished particles kept",
    "amc-both-15": "AMC, mean of these two",
}
PAIRS = (
    ("amc-15", "best-of-15", ("oracle", "top5", "mean", "mean_distinct")),
    ("amc-both-15", "best-of-15", ("oracle", "top5", "mean", "mean_distinct")),
    ("amc-hidden-15", "best-of-15", ("deployable",)),
    ("amc-hidden-15", "react-greedy", ("deployable",)),
    ("amc-keep-15", "best-of-15", ("oracle", "top5", "mean", "mean_distinct")),
    ("amc-keep-15", "amc-15", ("oracle", "top5", "mean", "mean_distinct")),
    ("amc-15-paper", "best-of-15", ("oracle", "top5", "mean")),
    ("amc-15", "amc-shuffled-15", ("oracle", "top5", "mean", "mean_distinct")),
    ("amc-shuffled-15", "smc-15", ("oracle", "top5", "mean")),
    ("smc-15", "best-of-15", ("oracle",)),
)
"""What is asked, first the question of the study."""


def summary(cells: Cells, runs: Sequence[tuple[Shard, RunResult]] = ()) -> dict[str, Any]:
    """Every score, cost and difference as plain values; of the runs too, what needs their particles."""
    scores = {
        name: {metric: estimate(one.scores)._asdict() for metric, one in of_each.items()}
        for name, of_each in cells.scores.items()
    }
    differences = [
        {"a": a, "b": b, "metric": metric, **difference(cells.scores[a][metric], cells.scores[b][metric])}
        for regime in (HOT, TUNED)
        for a, b, metrics in (_named(regime, *one) for one in PAIRS)
        if a in cells.scores and b in cells.scores
        for metric in metrics
    ]
    return {
        "scores": scores, "costs": cells.costs, "differences": differences,
        "budget": budget(runs), "populations": populations(runs),
    }  # fmt: skip


def _named(regime: str, a: str, b: str, metrics: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    first, second = (one if one == "react-greedy" else f"{regime}-{one}" for one in (a, b))
    return first, second, metrics


def tables(title: str, told: Mapping[str, Any]) -> str:
    """A band's tables as Markdown."""
    lines = [f"## {title}", ""]
    for regime, heading in ((HOT, "Temperature 1"), (TUNED, "Every temperature tuned")):
        rows = [(name, label) for name, label in ROWS.items() if _of(regime, name) in told["scores"]]
        if not rows:
            continue
        seen = [told["scores"][_of(regime, name)]["oracle"] for name, _ in rows]
        tasks, seeds = (" to ".join(map(str, sorted({one[of] for one in seen}))) for of in ("tasks", "seeds"))
        lines += [f"### {heading}", "", f"{tasks} tasks, {seeds} seed{'' if seeds == '1' else 's'}. {PARAMETERS}", ""]
        scored = []
        for name, label in rows:
            scores, cost = told["scores"][_of(regime, name)], told["costs"][_of(regime, name)]
            anew = cost["critic_tokens"] - cost["critic_cached_tokens"]
            spent = [f"{one:,.0f}" for one in (cost["policy_calls"], cost["policy_output_tokens"], anew)]
            scored.append([label, *(score(scores.get(metric)) for metric in METRICS), *spent])
        headings = ["method", *METRICS.values(), "model calls", "tokens written", "critic tokens"]
        lines += [table(headings, scored, "l" + "r" * (len(headings) - 1)), ""]
        paired = []
        for one in told["differences"]:
            if one["a"].startswith(regime):
                names = " - ".join(ROWS[one[side].removeprefix(f"{regime}-")] for side in "ab")
                paired.append([names, METRICS[one["metric"]], f"{one['difference']:+.3f}", *_intervals(one)])
        headings = ["paired over tasks", "metric", "difference", "over tasks", "over seeds too", "of each seed"]
        lines += [table(headings, paired, "llrrrl"), ""]
    return "\n".join(lines)


def title_of(band: str, policy: int) -> str:
    """A heading."""
    limits = BANDS[band]
    world = f"{limits[0]} to {limits[1]} optimal steps" if limits else "Official TextCraft, renamed"
    return world if policy == SHIPPED else f"{world}, another policy"


def _of(regime: str, name: str) -> str:
    return name if name == "react-greedy" else f"{regime}-{name}"


def _intervals(one: Mapping[str, Any]) -> list[str]:
    crossed = "" if one["low_crossed"] is None else f"{one['low_crossed']:+.3f} to {one['high_crossed']:+.3f}"
    each = ", ".join(f"{found:+.3f}" for found in one["of_each_seed"])
    return [f"{one['low']:+.3f} to {one['high']:+.3f}", crossed, each]


def main() -> None:
    """Read, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/study"))
    options = parser.parse_args()
    done = {
        (band, policy): cells
        for policy in (SHIPPED, FROM_SCRATCH)
        for band in BANDS
        if (cells := read(band, policy)).scores
    }
    told = {title_of(*which): summary(cells, list(records(*which))) for which, cells in done.items()}
    text = f"{PARAMETERS}\n\n" + "\n".join(tables(band, one) for band, one in told.items())
    spent, held = ({title: one[of] for title, one in told.items()} for of in ("budget", "populations"))
    text += f"\n## At equal tokens\n\n{PARAMETERS}\n\n{budget_table(spent)}"
    text += f"\n## What a population holds\n\n{PARAMETERS}\n\n{populations_table(held)}"
    rooms = room()
    if rooms:
        text += f"\n## What a better critic could gain\n\n{room_table(rooms)}"
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "room.md").write_text(room_table(rooms), encoding="utf-8")
    hard = done.get(("hard", SHIPPED))
    kept = finished(records("hard"))
    if kept:
        text += (
            f"\n## Finished particles kept or retired, at equal policy calls\n\n{PARAMETERS}\n\n{finished_table(kept)}"
        )
    sizes = curve(hard) if hard else []
    if sizes:
        text += f"\n## The hardest band over N\n\n{PARAMETERS}\n\n{curve_table(sizes)}"
    found = {regime: rows for regime in (HOT, TUNED) if hard and (rows := strata(hard, regime))}
    if found:
        text += f"\n## The hardest band by how often one trajectory succeeds\n\n{PARAMETERS}\n\n{strata_tables(found)}"
    changes = read_ablations()
    if changes:
        text += f"\n## One thing at a time\n\n{ablation_tables(changes)}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tables.md").write_text(f"# The study's tables\n\n{text}", encoding="utf-8")
    (options.out / "summary.md").write_text(summary_table(told), encoding="utf-8")
    whole = json.dumps(
        told | {"room": rooms, "finished": kept, "curve": sizes, "strata": found, "ablations": changes}, indent=1
    )
    (options.out / "results.json").write_text(whole + "\n", encoding="utf-8")
    hardest = next(iter(told.values()))
    draw_curve(sizes, options.out / "curve.png")
    draw_cost(hardest, options.out / "cost.png")
    print(text)


if __name__ == "__main__":
    main()
