"""The ablations as tables: each change against AMC as it was chosen (or against Best-of-15), of the same shard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ablations import ABLATIONS, AGAIN, BASE, REFERENCE, TRAINED
from amc_agents.bench.records import RunResult
from amc_agents.bench.report import measured
from amc_agents.bench.statistics import estimate, paired
from amc_agents.markdown import table
from packed import packed, unpack
from table_rows import PARAMETERS, change, score

METRICS = {"oracle": "oracle's pick", "top5": "top 5", "mean": "mean particle"}
HEADINGS = {
    "schedules": "When to resample",
    "weighing": "How a prediction weighs: beta, by the mean (eq. 7) and by what eq. 5 makes of it",
    "resampling": "How to resample, and finished particles",
    "critics": "Who judges",
    "ceiling": "Against Best-of-15: the study's critic, one taught first, an oracle; its settings, and gentler weights",
}


Scores = Mapping[str, Mapping[str, Mapping[Any, float]]]
"""Method -> metric -> a score for each task and seed."""


def read_ablations() -> dict[str, Any]:
    """Group -> what it was run with, and for each method its scores and its differences from the reference."""
    done = {group: unpack(shard.name) for group, shard in ABLATIONS.items() if packed(shard.name).exists()}
    scores = {group: _scores(told, records) for group, (told, records) in done.items()}
    # A method's name is part of its luck: the chosen setting was played under other names too.
    plays = [scores[group][name] for group, name in AGAIN.items() if name in scores.get(group, {})]
    found = {}
    for group, (told, _) in done.items():
        reference = _reference(group, scores[group], plays)
        unchanged = {REFERENCE[group]} if group in REFERENCE else {BASE, AGAIN.get(group)}
        found[group] = {
            "base": next(one for one in _methods(told) if one["name"] == BASE),
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
    _correct(_changes(found))
    return found


def _changes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every difference of every group."""
    scores = [one for group in found.values() for of in group["methods"].values() for one in of.values()]
    return [one["change"] for one in scores if "change" in one]


def _correct(changes: Sequence[dict[str, Any]]) -> None:
    """Add each change's p, by a normal test, after Holm's correction for all of them."""
    corrected = holm([_p(one["difference"], one["standard_error"]) for one in changes])
    for one, p in zip(changes, corrected, strict=True):
        one["p_holm"] = p


def _p(difference: float, error: float) -> float:
    if not error:
        return float(not difference)
    return math.erfc(abs(difference) / error / math.sqrt(2))


def holm(ps: Sequence[float]) -> list[float]:
    """P-values after Holm's correction for as many looks as there are."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for done, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - done) * ps[index]))
        adjusted[index] = largest
    return adjusted


def _scores(told: Mapping[str, Any], records: Sequence[RunResult]) -> Scores:
    names = [one["name"] for one in _methods(told)]
    of = {name: [one for one in records if one.method == name] for name in names}
    return {name: {metric: measured(of[name], metric) for metric in METRICS} for name in names}


def _reference(
    group: str, scores: Scores, plays: Sequence[Mapping[str, Mapping[Any, float]]]
) -> Mapping[str, Mapping[Any, float]]:
    """What a group is compared with: the chosen setting's plays, averaged, where it is nothing else."""
    if group in REFERENCE:
        return scores[REFERENCE[group]]
    every = [scores[BASE], *plays]
    return {
        metric: {key: sum(one[metric][key] for one in every) / len(every) for key in scores[BASE][metric]}
        for metric in METRICS
    }


def _methods(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **settings} for name, settings in told["methods"].items()]


def ablation_tables(told: Mapping[str, Any]) -> str:
    """All groups as Markdown."""
    lines = [
        f"Exploratory: {len(_changes(told))} differences were looked at. Intervals are not corrected; a difference is "
        f"heavy where p < .05 after Holm's correction for all of them. {PARAMETERS}",
        "",
    ]
    for group, one in told.items():
        base = one["base"]
        seen = one["methods"][BASE]["oracle"]
        critic = "" if base.get("success_reward") is None else ", potentials of eq. 5"
        plays = (
            ""
            if group in REFERENCE
            else f" Changes are against its {one['plays']} plays with different luck, averaged."
        )
        lines += [f"### {HEADINGS[group]}", ""]
        lines += [
            f"{seen['tasks']} training tasks. Chosen: temperature {base['temperature']}, {base['resample']}, beta "
            f"{base['beta']}{critic}.{plays}", "",
        ]  # fmt: skip
        headings = ["AMC with", *(heading for name in METRICS.values() for heading in (name, "change"))]
        rows = []
        for name, scores in one["methods"].items():
            label = TRAINED.get(name.removeprefix("value-"), name) if group == "critics" else name
            rows.append([label, *(cell for metric in METRICS for cell in _cells(scores[metric]))])
        lines += [table(headings, rows, "l" + "r" * (len(headings) - 1)), ""]
    return "\n".join(lines)


def _cells(found: Mapping[str, Any]) -> list[str]:
    if "change" not in found:
        return [score(found), ""]
    text = change(found["change"])
    return [score(found), f"**{text}**" if found["change"]["p_holm"] < 0.05 else text]
