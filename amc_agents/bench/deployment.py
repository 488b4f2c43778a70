"""What the decision for or against a method needs: its deployable pick against the plain agent, and what it costs."""

from __future__ import annotations

import math
from typing import NamedTuple

from amc_agents.bench.methods import REACT, REACT_GREEDY
from amc_agents.bench.report import MethodCost, MethodResult, PairedDifference, Results
from amc_agents.bench.statistics import ENOUGH_TASKS
from amc_agents.markdown import table

_PICK = "deployable"
_MOST_TIMES = 20
"""No number of tasks is suggested above this multiple of those that were run."""
HEADINGS = ("deployable pick", "against", "gain", "95% interval", "decided", "model calls", "tokens out", "dollars")


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
            f"{one.method.label}: {one.method.scores[_PICK].mean:.3f}",
            f"{one.plain.label}: {one.plain.scores[_PICK].mean:.3f}",
            f"{one.gain.difference:+.3f}",
            f"{one.gain.low:+.3f} to {one.gain.high:+.3f}",
            one.verdict,
            *_costs(one.method.cost, one.plain.cost),
        ]
        for one in deployments(results)
    ]


def deployment_note(results: Results) -> str:
    """Explain the table, or say what is missing for a deployable pick."""
    if not results.methods:
        return ""
    made = deployments(results)
    if not made:
        return _without_pick(results)
    tasks = min(one.gain.tasks for one in made)
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
        for pick, plain, gain, interval, verdict, calls, tokens, dollars in deployment_rows(results)
    ]
    return [*sentences, deployment_note(results)]


def deployment_markdown(results: Results) -> str:
    """Format the deployments as Markdown; empty if no method has a deployable pick."""
    rows = deployment_rows(results)
    if not rows:
        return ""
    return "\n\n".join([table(list(HEADINGS), rows, "llrrlrrr"), deployment_note(results)])


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
    ]


def _times(cost: float, plain: float) -> str:
    return f"{cost:,.0f} (x {cost / plain:.1f})" if plain else f"{cost:,.0f}"
