"""Write tables and figures of the study from finished shards.

    python reproduce/study/report.py [--out docs/results/study]

Writes summary.md (a row for each world and regime), room.md (an oracle's gain), tables.md (by difficulty, then the
ablations), results.json, and for the hardest band curve.png (score over N) and cost.png (score over model calls and
tokens). Intervals are 95%: the first over tasks, with each task's seeds averaged; the second over training seeds too,
each with its own value models, which needs at least two seeds. A table with a single interval has the second if it
exists. With equal seeds, AMC plays the same trajectories whether rewards are hidden or not
(tests/bench/test_hidden_rewards.py), so the mean of both rows has a smaller error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amc_agents.bench.records import RunResult
from amc_agents.bench.statistics import estimate
from amc_agents.markdown import table
from reproduce.study.ablation_tables import ablation_tables, read_ablations
from reproduce.study.budget import budget, budget_table
from reproduce.study.curve import curve, curve_table
from reproduce.study.figures import draw_cost, draw_curve
from reproduce.study.finished import finished, finished_table
from reproduce.study.populations import populations, populations_table
from reproduce.study.results import Cells, difference, read, records
from reproduce.study.room_tables import room, room_table
from reproduce.study.settings import BANDS, FROM_SCRATCH, HOT, SHIPPED, TUNED, Shard
from reproduce.study.strata import strata, strata_tables
from reproduce.study.summary import summary_table
from reproduce.study.table_rows import PARAMETERS, score

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
"""Comparisons; the first answers the question of the study."""


def summary(cells: Cells, runs: Sequence[tuple[Shard, RunResult]] = ()) -> dict[str, Any]:
    """Collect scores, costs and differences as plain values, and results that need the particles of runs."""
    scores = {
        name: {metric: estimate(scored.scores)._asdict() for metric, scored in of_each.items()}
        for name, of_each in cells.scores.items()
    }
    differences = [
        {"a": a, "b": b, "metric": metric, **difference(cells.scores[a][metric], cells.scores[b][metric])}
        for regime in (HOT, TUNED)
        for a, b, metrics in (_named(regime, *pair) for pair in PAIRS)
        if a in cells.scores and b in cells.scores
        for metric in metrics
    ]
    return {
        "scores": scores, "costs": cells.costs, "differences": differences,
        "budget": budget(runs), "populations": populations(runs),
    }  # fmt: skip


def _named(regime: str, a: str, b: str, metrics: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    first, second = (name if name == "react-greedy" else f"{regime}-{name}" for name in (a, b))
    return first, second, metrics


def tables(title: str, results: Mapping[str, Any]) -> str:
    """Format the tables of a band as Markdown."""
    lines = [f"## {title}", ""]
    for regime, heading in ((HOT, "Temperature 1"), (TUNED, "Every temperature tuned")):
        rows = [(name, label) for name, label in ROWS.items() if _of(regime, name) in results["scores"]]
        if not rows:
            continue
        seen = [results["scores"][_of(regime, name)]["oracle"] for name, _ in rows]
        tasks, seeds = (" to ".join(map(str, sorted({score[of] for score in seen}))) for of in ("tasks", "seeds"))
        lines += [f"### {heading}", "", f"{tasks} tasks, {seeds} seed{'' if seeds == '1' else 's'}. {PARAMETERS}", ""]
        scored = []
        for name, label in rows:
            scores, cost = results["scores"][_of(regime, name)], results["costs"][_of(regime, name)]
            anew = cost["critic_tokens"] - cost["critic_cached_tokens"]
            spent = [f"{value:,.0f}" for value in (cost["policy_calls"], cost["policy_output_tokens"], anew)]
            scored.append([label, *(score(scores.get(metric)) for metric in METRICS), *spent])
        headings = ["method", *METRICS.values(), "model calls", "tokens written", "critic tokens"]
        lines += [table(headings, scored, "l" + "r" * (len(headings) - 1)), ""]
        paired = []
        for gap in results["differences"]:
            if gap["a"].startswith(regime):
                names = " - ".join(ROWS[gap[side].removeprefix(f"{regime}-")] for side in "ab")
                paired.append([names, METRICS[gap["metric"]], f"{gap['difference']:+.3f}", *_intervals(gap)])
        headings = ["paired over tasks", "metric", "difference", "over tasks", "over seeds too", "of each seed"]
        lines += [table(headings, paired, "llrrrl"), ""]
    return "\n".join(lines)


def title_of(band: str, policy: int) -> str:
    """Return the heading of a band and policy."""
    limits = BANDS[band]
    world = f"{limits[0]} to {limits[1]} optimal steps" if limits else "Official TextCraft, renamed"
    return world if policy == SHIPPED else f"{world}, another policy"


def _of(regime: str, name: str) -> str:
    return name if name == "react-greedy" else f"{regime}-{name}"


def _intervals(difference: Mapping[str, Any]) -> list[str]:
    crossed = (
        ""
        if difference["low_crossed"] is None
        else f"{difference['low_crossed']:+.3f} to {difference['high_crossed']:+.3f}"
    )
    each = ", ".join(f"{each_seed:+.3f}" for each_seed in difference["of_each_seed"])
    return [f"{difference['low']:+.3f} to {difference['high']:+.3f}", crossed, each]


def main() -> None:
    """Read the results, write the pages, and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/study"))
    options = parser.parse_args()
    done = {
        (band, policy): cells
        for policy in (SHIPPED, FROM_SCRATCH)
        for band in BANDS
        if (cells := read(band, policy)).scores
    }
    results_of = {title_of(*which): summary(cells, list(records(*which))) for which, cells in done.items()}
    text = f"{PARAMETERS}\n\n" + "\n".join(tables(band, results) for band, results in results_of.items())
    spent, held = ({title: results[of] for title, results in results_of.items()} for of in ("budget", "populations"))
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
    strata_of = {regime: rows for regime in (HOT, TUNED) if hard and (rows := strata(hard, regime))}
    if strata_of:
        text += (
            f"\n## The hardest band by how often one trajectory succeeds\n\n{PARAMETERS}\n\n{strata_tables(strata_of)}"
        )
    changes = read_ablations()
    if changes:
        text += f"\n## One thing at a time\n\n{ablation_tables(changes)}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tables.md").write_text(f"# The study's tables\n\n{text}", encoding="utf-8")
    (options.out / "summary.md").write_text(summary_table(results_of), encoding="utf-8")
    whole = json.dumps(
        results_of | {"room": rooms, "finished": kept, "curve": sizes, "strata": strata_of, "ablations": changes},
        indent=1,
    )
    (options.out / "results.json").write_text(whole + "\n", encoding="utf-8")
    hardest = next(iter(results_of.values()))
    draw_curve(sizes, options.out / "curve.png")
    draw_cost(hardest, options.out / "cost.png")
    print(text)


if __name__ == "__main__":
    main()
