"""Results as text: tables of scores and costs, paired differences, and the decision for or against a method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from amc_agents.bench.methods import RACES, REACT, REACT_GREEDY
from amc_agents.bench.records import METRICS
from amc_agents.bench.report import Mean, MethodCost, MethodResult, PairedDifference, Results
from amc_agents.bench.statistics import ENOUGH_TASKS, Estimate
from amc_agents.bench.tuned import Cell
from amc_agents.markdown import table

CostText = Callable[[MethodCost], str]
"""Formats one cost of a method."""
_COSTS: Mapping[str, CostText] = {
    "steps": lambda cost: "-" if cost.steps is None else f"{cost.steps:.1f}",
    "model calls": lambda cost: f"{cost.policy_calls:,.0f}",
    "tokens out": lambda cost: f"{cost.policy_output_tokens:,.0f}",
    "critic tokens": lambda cost: f"{cost.critic_tokens - cost.critic_cached_tokens:,.0f}",
    "imagined tokens": lambda cost: f"{cost.world_model_tokens - cost.world_model_cached_tokens:,.0f}",
    "dollars": lambda cost: "-" if cost.dollars is None else f"{cost.dollars:.4f}",
    "time (s)": lambda cost: f"{cost.seconds:.1f}",
}
"""Costs per task. Cached tokens are not counted for critics and forward models."""
SHOWN = ("success", "oracle", "deployable", "top5", "mean", "top5_distinct", "mean_distinct")
"""Metrics of the Markdown table; the JSON has all of them."""
_ALONE = ("react-greedy", "vote", "vote-greedy", "vote-list")
"""Methods that use the policy without a critic."""
_MAIN_DIFFERENCES = {
    ("best-of-n", "react", "oracle"),
    ("amc", "best-of-n", "oracle"),
    ("amc", "smc", "oracle"),
    ("amc", "best-of-n", "top5"),
    ("amc", "best-of-n", "mean"),
    ("amc", "best-of-n", "mean_distinct"),
    ("amc-hidden", "best-of-n", "deployable"),
    ("amc-hidden", "react-greedy", "deployable"),
    *product(RACES.values(), ("react", "best-of-n", "amc-hidden"), ("deployable",)),
}
_PICK = "deployable"
_MOST_TIMES = 20
"""No number of tasks is suggested above this multiple of those that were run."""
HEADINGS = (
    "deployable pick",
    "against",
    "gain",
    "95% interval",
    "decided",
    "model calls",
    "tokens out",
    "dollars",
    "time (s)",
)


def markdown(results: Results) -> str:
    """Format the scores and the main differences as Markdown."""
    metrics = used_metrics(results, {metric: METRICS[metric] for metric in SHOWN})
    costs = used_costs(results)
    failed = failed_cells(results)
    headings = ["method", *(["failed"] if failed else []), *metrics.values(), *costs]
    rows = [[label, *([failed[label]] if failed else []), *cells] for label, *cells in rows_of(results, metrics, costs)]
    parts = [table(headings, rows, "l" + "r" * (len(headings) - 1)), caption(results)]
    differences = [
        [pair, metric, f"{difference.difference:+.3f}", f"{difference.low:+.3f} to {difference.high:+.3f}"]
        for pair, metric, difference in labelled_differences(results)
    ]
    if differences:
        parts.append(table(["paired difference", "metric", "mean", "95% interval"], differences, "llrr"))
        parts.append(rival_note(results))
    parts += [deployment_markdown(results), failure_note(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main_differences(results: Results) -> list[PairedDifference]:
    """Select the differences that matter most.

    A method that decides by a critic is compared with ReAct, and with the best method without a critic: most of its
    gain over ReAct may come from voting. A method with an oracle critic has no deployable pick.
    """
    wanted = _MAIN_DIFFERENCES | {
        (method.name, rival, metric)
        for method in results.methods
        if _uses_critic(method)
        for metric in _decisive_metrics(results, method)
        for rival in ("react", _rival(results, metric))
    }
    return [pair for pair in results.comparisons if (pair.a, pair.b, pair.metric) in wanted]


def labelled_differences(results: Results) -> list[tuple[str, str, PairedDifference]]:
    """Return (pair of methods, metric, difference) as tables print them, for the main differences."""
    labels = {method.name: method.label for method in results.methods}
    return [(f"{labels[pair.a]} - {labels[pair.b]}", METRICS[pair.metric], pair) for pair in main_differences(results)]


def used_metrics(results: Results, headings: Mapping[str, str]) -> dict[str, str]:
    """Select the metrics that at least one method has: single trajectories have no top 5.

    Args:
        results: the results.
        headings: metric -> its heading.
    """
    return {
        metric: heading
        for metric, heading in headings.items()
        if any(_score_cell(method, metric) != "-" for method in results.methods)
        and (metric != "success" or _success_differs(results))
    }


def used_costs(results: Results) -> dict[str, CostText]:
    """Select the costs to show: steps if a method decides each step, imagined tokens and dollars if there are any."""
    unused = {
        "steps": not any(method.settings.get("decision") for method in results.methods),
        "imagined tokens": not any(method.cost.world_model_tokens for method in results.methods),
        "dollars": not any(method.cost.dollars for method in results.methods),
    }
    return {name: cost_text for name, cost_text in _COSTS.items() if not unused.get(name)}


def row_of(method: MethodResult, metrics: Mapping[str, str], costs: Mapping[str, CostText]) -> list[str]:
    """Return the cells of a method: its label, scores and costs."""
    scores = [_score_cell(method, metric) for metric in metrics]
    return [method.label, *scores, *(cost_text(method.cost) for cost_text in costs.values())]


def rows_of(results: Results, metrics: Mapping[str, str], costs: Mapping[str, CostText]) -> list[list[str]]:
    """Return the cells of every method; a method whose runs all failed has no scores."""
    rows = [row_of(method, metrics, costs) for method in results.methods]
    shown = {method.name for method in results.methods}
    lost = [failures for failures in results.failures if failures.method not in shown]
    return rows + [[failures.label, *["-"] * (len(metrics) + len(costs))] for failures in lost]


def failed_cells(results: Results) -> dict[str, str]:
    """Map the label of every method to its number of failed runs; empty if no run failed."""
    if not results.failures:
        return {}
    cells = {method.label: "0" for method in results.methods}
    return cells | {failures.label: f"{failures.failed} of {failures.runs}" for failures in results.failures}


def failure_note(results: Results) -> str:
    """Say why runs failed, and what that means for the figures; empty if no run failed."""
    if not results.failures:
        return ""
    causes = "; ".join(f"{failures.label}: {', '.join(failures.causes)}" for failures in results.failures)
    return (
        "Failed runs have no score: means are over the other runs, and paired differences over the pairs without a "
        f"failure. --resume runs them again. Causes: {causes}."
    )


def score_text(score: Mean | Estimate | None) -> str:
    """Format a mean and its standard error."""
    if score is None:
        return "-"
    if score.standard_error is None or not math.isfinite(score.standard_error):
        return f"{score.mean:.3f}"
    return f"{score.mean:.3f} ± {score.standard_error:.3f}"


def setting_row(cell: Cell) -> list[str]:
    """Return the cells of a tried setting: temperature, resampling steps, beta, pick and top 5."""
    tuned = cell.tuned
    steps = ", ".join(map(str, tuned.steps))
    beta = f"{tuned.beta:g}" + (" (eq. 5)" if tuned.success_reward else "") if steps else "-"
    top5 = score_text(None if cell.method == REACT else cell.scores["top5"])
    return [f"{tuned.temperature:g}", steps or "-", beta, score_text(cell.pick), top5]


def caption(results: Results) -> str:
    """Describe the size of the comparison and the columns."""
    means = [score for method in results.methods for score in method.scores.values()]
    tasks, seeds = {mean.tasks for mean in means}, {mean.seeds for mean in means}
    alone = all(method.settings["n_particles"] == 1 for method in results.methods)
    particles = "" if alone else f", N = {results.settings.get('n_particles', '?')}"
    sentences = [
        f"{_range(tasks)} tasks, {_range(seeds)} seed(s){particles}; mean ± standard error over tasks.",
        "The oracle's pick sees the rewards; the deployable pick does not.",
    ]
    if _success_differs(results):
        minimum = results.settings.get("success", 1)
        sentences.append(f"Success: the oracle's pick returned {minimum:g} or more; the picks' columns are returns.")
    if any("race" in method.settings for method in results.methods):
        sentences.append("A race is scored by its answer; requests that it cancelled count what was reserved for them.")
    tried = results.settings.get("settings_tried")
    if tried:
        counts = ", ".join(f"{name} {count}" for name, count in tried.items())
        sentences.append(f"Settings tried on training tasks: {sum(tried.values())} ({counts}).")
    return " ".join(sentences)


def rival_note(results: Results) -> str:
    """Explain which methods without a critic were compared with, and special kinds of methods."""
    judged = [method for method in results.methods if _uses_critic(method)]
    rivals = {_rival(results, metric) for method in judged for metric in _decisive_metrics(results, method)}
    named = " and ".join(method.label for method in results.methods if method.name in rivals)
    notes = [f"{named}: the best here of {', '.join(_ALONE)}, chosen by these figures."] if named else []
    if any(method.settings.get("oracle") for method in judged):
        notes.append("ORACLE: judged by a critic that knows the world; an upper bound, not a method.")
    if any(method.settings.get("listed") for method in results.methods):
        notes.append("listed: all actions that the world lists are candidates, under the exact prior.")
    return " ".join(notes)


def _success_differs(results: Results) -> bool:
    """Return whether a success is not worth 1, so that success rate and return are two metrics."""
    pairs = [(method.scores[name].mean for name in ("success", "oracle")) for method in results.methods]
    return any(success != return_ for success, return_ in pairs)


def _uses_critic(method: MethodResult) -> bool:
    return bool((method.settings.get("decision") or {}).get("use_critic"))


def _decisive_metrics(results: Results, method: MethodResult) -> list[str]:
    """Return the metrics by which a method of single trajectories is compared."""
    pick = "oracle" if method.settings.get("oracle") else "deployable"
    return ["success", pick] if _success_differs(results) else [pick]


def _rival(results: Results, metric: str) -> str | None:
    """Return the best method without a critic, by its mean."""
    rivals = [method for method in results.methods if method.name in _ALONE and metric in method.scores]
    return max(rivals, key=lambda method: method.scores[metric].mean).name if rivals else None


def _score_cell(method: MethodResult, metric: str) -> str:
    # A single trajectory has no top 5 and no spread: its return is the pick, with and without seeing rewards.
    hidden = method.scores_one and metric not in ("success", "oracle", "deployable")
    return score_text(None if hidden else method.scores.get(metric))


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


class Deployment(NamedTuple):
    """A method that could be deployed, against the plain agent on the same tasks."""

    method: MethodResult
    plain: MethodResult
    gain: PairedDifference
    """The method's deployable pick minus the plain agent's result."""

    @property
    def verdict(self) -> str:
        """Return "better", "worse", or "not yet" with the number of tasks that would decide a gain of this size."""
        if self.gain.low > 0:
            return "better"
        if self.gain.high < 0:
            return "worse"
        return "not yet" + (f": needs some {self.tasks_needed} tasks" if self.tasks_needed else "")

    @property
    def tasks_needed(self) -> int | None:
        """Number of tasks with which the interval would be half the gain wide on each side; None: out of reach."""
        half = (self.gain.high - self.gain.low) / 2
        if not self.gain.difference or half <= 0:
            return None
        times = (half / abs(self.gain.difference)) ** 2
        return math.ceil(times * self.gain.tasks) if 1 < times <= _MOST_TIMES else None


def deployments(results: Results) -> list[Deployment]:
    """Return every method with a deployable pick against each plain agent that was run."""
    plain = [method for name in (REACT, REACT_GREEDY) if (method := results.of(name)) is not None]
    pairs = {(pair.a, pair.b): pair for pair in results.comparisons if pair.metric == _PICK}
    return [
        Deployment(method, agent, pairs[method.name, agent.name])
        for method in results.methods
        for agent in plain
        if (method.name, agent.name) in pairs and method not in plain and not method.settings.get("oracle")
    ]


def deployment_rows(results: Results) -> list[list[str]]:
    """Return the cells of each deployment, in the order of `HEADINGS`."""
    return [
        [
            f"{deployment.method.label}: {deployment.method.scores[_PICK].mean:.3f}",
            f"{deployment.plain.label}: {deployment.plain.scores[_PICK].mean:.3f}",
            f"{deployment.gain.difference:+.3f}",
            f"{deployment.gain.low:+.3f} to {deployment.gain.high:+.3f}",
            deployment.verdict,
            *_costs(deployment.method.cost, deployment.plain.cost),
        ]
        for deployment in deployments(results)
    ]


def deployment_note(results: Results) -> str:
    """Explain the table, or say what is missing for a deployable pick."""
    if not results.methods:
        return ""
    made = deployments(results)
    if not made:
        return _without_pick(results)
    tasks = min(deployment.gain.tasks for deployment in made)
    few = (
        f" With fewer than {ENOUGH_TASKS} tasks and few differing results, intervals are unreliable."
        if tasks < ENOUGH_TASKS
        else ""
    )
    return (
        "Paired over tasks. The pick is made without seeing a reward, as in production; costs are per task, and times "
        f"the plain agent's.{few}"
    )


def deployment_lines(results: Results) -> list[str]:
    """Return a sentence for each deployment, and the note."""
    sentences = [
        f"{pick} against {plain}: gain {gain} ({interval}), {verdict}; {calls} model calls, {tokens} tokens out"
        + ("" if dollars == "-" else f", {dollars} dollars")
        + f", {seconds} s"
        for pick, plain, gain, interval, verdict, calls, tokens, dollars, seconds in deployment_rows(results)
    ]
    return [*sentences, deployment_note(results)]


def deployment_markdown(results: Results) -> str:
    """Format the deployments as Markdown; empty if no method has a deployable pick."""
    rows = deployment_rows(results)
    if not rows:
        return ""
    return "\n\n".join([table(list(HEADINGS), rows, "llrrlrrrr"), deployment_note(results)])


def _without_pick(results: Results) -> str:
    plain = results.of(REACT) or results.of(REACT_GREEDY)
    many = [method for method in results.methods if method.settings["n_particles"] != 1 and "oracle" in method.scores]
    if plain is None or not many:
        return ""
    best = max(many, key=lambda method: method.scores["oracle"].mean)
    room = best.scores["oracle"].mean - plain.scores["oracle"].mean
    return (
        "No method here has a deployable pick, because no critic predicts the whole return. The oracle's pick of "
        f"{best.label} is {room:+.3f} above the {plain.label}: so much room does a critic have at this N. Train one "
        "(amc collect, amc train value) and pass it as --critic."
    )


def _costs(cost: MethodCost, plain: MethodCost) -> list[str]:
    return [
        _times(cost.policy_calls, plain.policy_calls),
        _times(cost.policy_output_tokens, plain.policy_output_tokens),
        "-" if cost.dollars is None else f"{cost.dollars:.4f}",
        _times(cost.seconds, plain.seconds, decimals=1),
    ]


def _times(cost: float, plain: float, decimals: int = 0) -> str:
    text = f"{cost:,.{decimals}f}"
    return f"{text} (x {cost / plain:.1f})" if plain else text
