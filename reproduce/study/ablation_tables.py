"""The ablations as tables: each change against AMC as it was chosen (or against Best-of-15), of the same shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations import BASE, GROUPS, REFERENCE, TRAINED, Ablation
from amc_agents.bench.report import measured
from amc_agents.bench.statistics import estimate, paired
from packed import packed, unpack
from table_rows import change, row, score

METRICS = {"oracle": "oracle's pick", "top5": "top 5", "mean": "mean particle"}
HEADINGS = {
    "schedules": "When to resample",
    "weighing": "How a prediction weighs: beta, by the mean (eq. 7) and by what eq. 5 makes of it",
    "resampling": "How to resample, and finished particles",
    "critics": "Who judges",
    "ceiling": "Against Best-of-15: the study's critic, one taught first, an oracle; weights as chosen, and gentler",
}


def read_ablations() -> dict[str, Any]:
    """Group -> what it was run with, and for each method its scores and its differences from the chosen one."""
    found = {}
    for group in GROUPS:
        if not packed(Ablation(group).name).exists():
            continue
        told, records = unpack(Ablation(group).name)
        scores: dict[str, Any] = {}
        other = REFERENCE.get(group, BASE)
        for name in dict.fromkeys(one["name"] for one in _methods(told)):
            of_it = [one for one in records if one.method == name]
            scores[name] = {metric: measured(of_it, metric) for metric in METRICS}
        found[group] = {
            "base": next(one for one in _methods(told) if one["name"] == BASE),
            "methods": {
                name: {
                    metric: estimate(values)._asdict()
                    | ({} if name == other else {"change": paired(values, scores[other][metric])._asdict()})
                    for metric, values in each.items()
                }
                for name, each in scores.items()
            },
        }
    return found


def _methods(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **settings} for name, settings in told["methods"].items()]


def ablation_tables(told: Mapping[str, Any]) -> str:
    """All groups as Markdown."""
    lines: list[str] = []
    for group, one in told.items():
        base = one["base"]
        seen = one["methods"][BASE]["oracle"]
        critic = "" if base.get("success_reward") is None else ", potentials of eq. 5"
        lines += [f"### {HEADINGS[group]}", ""]
        lines += [
            f"{seen['tasks']} training tasks. Chosen: temperature {base['temperature']}, {base['resample']}, beta "
            f"{base['beta']}{critic}.", "",
        ]  # fmt: skip
        lines += [row(["AMC with", *(heading for name in METRICS.values() for heading in (name, "change"))])]
        lines += [row(["---", *["---:"] * (2 * len(METRICS))])]
        for name, scores in one["methods"].items():
            label = TRAINED.get(name.removeprefix("value-"), name) if group == "critics" else name
            lines.append(row([label, *(cell for metric in METRICS for cell in _cells(scores[metric]))]))
        lines.append("")
    return "\n".join(lines)


def _cells(found: Mapping[str, Any]) -> list[str]:
    return [score(found), change(found["change"]) if "change" in found else ""]
