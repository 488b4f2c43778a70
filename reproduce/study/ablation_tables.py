"""Tables of the ablations: each change compared with the chosen AMC, or with Best-of-15, of the same shard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from amc_agents.bench.records import RunResult
from amc_agents.bench.report import measured
from amc_agents.bench.statistics import estimate, paired
from amc_agents.markdown import table
from reproduce.study.ablations import ABLATIONS, AGAIN, BASE, REFERENCE, TRAINED
from reproduce.study.packed import packed, unpack
from reproduce.study.table_rows import PARAMETERS, change, score

METRICS = {"oracle": "oracle's pick", "top5": "top 5", "mean": "mean particle"}
HEADINGS = {
    "schedules": "When to resample",
    "weighing": "How a prediction weighs: beta, by the mean (eq. 7) and by what eq. 5 makes of it",
    "resampling": "How to resample, and finished particles",
    "critics": "Who judges",
    "ceiling": "Against Best-of-15: the study's critic, one taught first, an oracle; its settings, and gentler weights",
}


Scores = Mapping[str, Mapping[str, Mapping[Any, float]]]
"""Method -> metric -> score of each task and seed."""


def read_ablations() -> dict[str, Any]:
    """Read group -> its settings, and for each method the scores and the differences from the reference."""
    done = {group: unpack(shard.name) for group, shard in ABLATIONS.items() if packed(shard.name).exists()}
    scores = {group: _scores(header, records) for group, (header, records) in done.items()}
    # The seed depends on a method's name: the chosen setting was run under other names too.
    plays = [scores[group][name] for group, name in AGAIN.items() if name in scores.get(group, {})]
    groups = {}
    for group, (header, _) in done.items():
        reference = _reference(group, scores[group], plays)
        unchanged = {REFERENCE[group]} if group in REFERENCE else {BASE, AGAIN.get(group)}
        groups[group] = {
            "base": next(method for method in _methods(header) if method["name"] == BASE),
            "plays": 1 + len(plays),
            "methods": {
                name: {
                    metric: estimate(values)._asdict()
                    | ({} if name in unchanged else {"change": paired(values, reference[metric])._asdict()})
                    for metric, values in each.items()
                }
                for name, each in scores[group].items()
            },
        }
    _correct(_changes(groups))
    return groups


def _changes(groups: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the differences of all groups."""
    scores = [score for group in groups.values() for each in group["methods"].values() for score in each.values()]
    return [score["change"] for score in scores if "change" in score]


def _correct(changes: Sequence[dict[str, Any]]) -> None:
    """Add to each change its p-value by a normal test, with Holm's correction over all changes."""
    corrected = holm([two_sided_p(each["difference"], each["standard_error"]) for each in changes])
    for each, p in zip(changes, corrected, strict=True):
        each["p_holm"] = p


def two_sided_p(difference: float, error: float) -> float:
    """P-value of a difference with a standard error, by a normal test."""
    if not error:
        return float(not difference)
    return math.erfc(abs(difference) / error / math.sqrt(2))


def holm(ps: Sequence[float]) -> list[float]:
    """Apply Holm's correction to p-values."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for done, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - done) * ps[index]))
        adjusted[index] = largest
    return adjusted


def _scores(header: Mapping[str, Any], records: Sequence[RunResult]) -> Scores:
    names = [method["name"] for method in _methods(header)]
    records_of = {name: [record for record in records if record.method == name] for name in names}
    return {name: {metric: measured(records_of[name], metric) for metric in METRICS} for name in names}


def _reference(
    group: str, scores: Scores, plays: Sequence[Mapping[str, Mapping[Any, float]]]
) -> Mapping[str, Mapping[Any, float]]:
    """Return the scores of a group's reference; by default, the mean over all runs of the chosen setting."""
    if group in REFERENCE:
        return scores[REFERENCE[group]]
    every = [scores[BASE], *plays]
    return {
        metric: {key: sum(play[metric][key] for play in every) / len(every) for key in scores[BASE][metric]}
        for metric in METRICS
    }


def _methods(header: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **settings} for name, settings in header["methods"].items()]


def ablation_tables(groups: Mapping[str, Any]) -> str:
    """Format all groups as Markdown."""
    lines = [
        f"Exploratory: {len(_changes(groups))} differences were looked at. Intervals are not corrected; a difference "
        f"is heavy where p < .05 after Holm's correction for all of them. {PARAMETERS}",
        "",
    ]
    for group, results in groups.items():
        base = results["base"]
        chosen = results["methods"][BASE]["oracle"]
        critic = "" if base.get("success_reward") is None else ", potentials of eq. 5"
        plays = (
            ""
            if group in REFERENCE
            else f" Changes are against its {results['plays']} plays with different random draws, averaged."
        )
        lines += [f"### {HEADINGS[group]}", ""]
        lines += [
            f"{chosen['tasks']} training tasks. Chosen: temperature {base['temperature']}, {base['resample']}, beta "
            f"{base['beta']}{critic}.{plays}", "",
        ]  # fmt: skip
        headings = ["AMC with", *(heading for name in METRICS.values() for heading in (name, "change"))]
        rows = []
        for name, scores in results["methods"].items():
            label = TRAINED.get(name.removeprefix("value-"), name) if group == "critics" else name
            rows.append([label, *(cell for metric in METRICS for cell in _cells(scores[metric]))])
        lines += [table(headings, rows, "l" + "r" * (len(headings) - 1)), ""]
    return "\n".join(lines)


def _cells(result: Mapping[str, Any]) -> list[str]:
    if "change" not in result:
        return [score(result), ""]
    text = change(result["change"])
    return [score(result), f"**{text}**" if result["change"]["p_holm"] < 0.05 else text]
