"""Relation of prior and critic in recorded decisions: tables 1, 2 and 12 of LAC.

`A` distinct candidate actions of one decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.bench.methods import ALPHAS
from amc_agents.bench.run_files import RunDecisions
from amc_agents.bench.statistics import Estimate, estimate
from amc_agents.lac.improvement import choose, improved
from amc_agents.lac.types import BoolArray
from amc_agents.markdown import table
from amc_agents.types import FloatArray

LEAST_STEPS = 3
"""Minimum number of decisions of a run for a correlation with time."""

Read = Callable[[Mapping[str, Any]], float]
"""Reads a number from the record of a candidate."""
WITH_WORDS: Mapping[str, Read] = {
    "p(GOOD)": lambda candidate: candidate["p_good"],
    "p(BAD)": lambda candidate: candidate["p_bad"],
    "Q": lambda candidate: candidate["q"],
}
WITHOUT_WORDS: Mapping[str, Read] = {
    "p = sigmoid(Q)": lambda candidate: float(1 / (1 + np.exp(-candidate["q"]))),
    "Q": lambda candidate: candidate["q"],
}
"""For critics without verdict words."""


class OverTime(NamedTuple):
    """Pearson's correlation of the chosen actions' scores with the step, within each run (LAC, table 1)."""

    correlations: Mapping[str, Estimate | None]
    """By score: "p(GOOD)", "p(BAD)" and "Q"; without verdict words "Q" and "p = sigmoid(Q)". None if no run has a
    correlation, because it has too few decisions or a constant score."""
    runs: int
    """Number of runs with three decisions or more."""
    decisions: int
    """Number of their decisions."""


def over_time(runs: Sequence[RunDecisions], *, success: bool) -> OverTime:
    """Correlate the critic's scores with time, over the successful or over the failed runs."""
    long_runs = [run for run in runs if run.success == success and len(run.decisions) >= LEAST_STEPS]
    chosen = {
        (run.task, run.seed): [decision["candidates"][decision["chosen"]] for decision in run.decisions]
        for run in long_runs
    }
    read_of = WITH_WORDS if _has_words(runs) else WITHOUT_WORDS
    return OverTime(
        {
            name: _mean_with_time({key: np.array(list(map(read, steps))) for key, steps in chosen.items()})
            for name, read in read_of.items()
        },
        len(long_runs),
        sum(map(len, chosen.values())),
    )


class Case(NamedTuple):
    """The decisions in which prior and Q relate to the choice in one way (LAC, table 2).

    Confidence is the margin between the best and the second-best candidate.
    """

    share: float
    prior_confidence: float
    q_confidence: float
    """In log-odds."""
    confidence: float
    """Confidence of the improved policy."""


class Agreement(NamedTuple):
    """Agreement of prior and critic, over the decisions with at least two candidates."""

    decisions: int
    """Number of decisions with at least two candidates."""
    of: int
    """Number of all decisions."""
    same_favourite: Estimate | None
    """Share of decisions in which prior and Q have the same largest action, within each run, over tasks; ties count as
    agreement if they can agree. None if no decision had two candidates."""
    rank_correlation: float | None
    """Mean of Spearman's rho between prior and Q; None if one of them is always constant over the candidates."""
    ranked: int
    """Number of decisions that have such a rho."""
    cases: Mapping[str, Case]
    """By what the choice follows: "both", "prior alone", "Q alone", "neither"."""


def agreement(runs: Sequence[RunDecisions]) -> Agreement:
    """Count how often prior and critic have the same favourite, and which of them the choice follows."""
    by_run = {(run.task, run.seed): contested for run in runs if (contested := _contested(run))}
    decisions = [decision for contested in by_run.values() for decision in contested]
    cases: dict[str, list[_Scores]] = {name: [] for name in ("both", "prior alone", "Q alone", "neither")}
    for decision in decisions:
        prior, q = decision.prior_agrees, decision.q_agrees
        cases["both" if prior and q else "prior alone" if prior else "Q alone" if q else "neither"].append(decision)
    ranks = [rho for decision in decisions if (rho := decision.rank_correlation) is not None]
    agreed = {
        key: float(np.mean([decision.same_favourite for decision in contested])) for key, contested in by_run.items()
    }
    return Agreement(
        decisions=len(decisions),
        of=sum(len(run.decisions) for run in runs),
        same_favourite=_mean(agreed),
        rank_correlation=float(np.mean(ranks)) if ranks else None,
        ranked=len(ranks),
        cases={name: _case(members, len(decisions)) for name, members in cases.items() if members},
    )


class Choices(NamedTuple):
    """The choices that another weight of the critic would make at the visited states."""

    alpha: float
    as_prior: float
    """Share of choices that voting would make too."""
    as_q: float
    """Share of choices that the critic alone would make too."""
    as_made: float
    """Share of choices that equal the choices made."""


def choices(runs: Sequence[RunDecisions], alphas: Iterable[float] = ALPHAS) -> list[Choices]:
    """Compute what other weights would choose (LAC, table 12), over decisions with two candidates or more.

    The states are those of the recorded runs: another weight would have visited other states.
    """
    decisions = [decision for run in runs for decision in _contested(run)]
    if not decisions:
        return []

    def share(alpha: float, other: Callable[[_Scores], int]) -> float:
        return float(np.mean([decision.choice(alpha) == other(decision) for decision in decisions]))

    return [
        Choices(
            alpha,
            share(alpha, lambda decision: decision.choice(0.0)),
            share(alpha, lambda decision: decision.choice(math.inf)),
            share(alpha, lambda decision: decision.chosen),
        )
        for alpha in alphas
    ]


def markdown(runs: Sequence[RunDecisions], labels: Mapping[str, str]) -> str:
    """Format the tables of every method whose decisions used a critic as Markdown.

    Args:
        runs: the decisions.
        labels: method -> its name in tables, in their order.
    """
    parts = []
    for name, label in labels.items():
        of_method = [run for run in runs if run.method == name]
        if any(decision["alpha"] != 0 for run in of_method for decision in run.decisions):
            tables = _time_table(of_method), _agreement_table(of_method), _choice_table(of_method)
            parts.append("\n".join([f"## {label}\n", *tables]))
    return "\n".join(parts)


class _Scores(NamedTuple):
    """The scores of one decision's candidates."""

    log_prior: FloatArray
    q: FloatArray
    probabilities: FloatArray
    chosen: int

    @classmethod
    def of(cls, decision: Mapping[str, Any]) -> _Scores:
        candidates = decision["candidates"]
        log_priors = (candidate["log_prior"] for candidate in candidates)
        log_prior = [-math.inf if value is None else value for value in log_priors]
        q, probabilities = ([candidate[name] for candidate in candidates] for name in ("q", "probability"))
        return cls(np.array(log_prior), np.array(q), np.array(probabilities), decision["chosen"])

    @property
    def prior(self) -> FloatArray:
        return np.exp(self.log_prior)

    @property
    def prior_agrees(self) -> bool:
        return bool(_favourites(self.prior)[self.chosen])

    @property
    def q_agrees(self) -> bool:
        return bool(_favourites(self.q)[self.chosen])

    @property
    def same_favourite(self) -> bool:
        return bool((_favourites(self.prior) & _favourites(self.q)).any())

    @property
    def rank_correlation(self) -> float | None:
        ranks = _ranks(self.prior), _ranks(self.q)
        return None if any(np.ptp(ranking) == 0 for ranking in ranks) else float(np.corrcoef(*ranks)[0, 1])

    def choice(self, alpha: float) -> int:
        return choose(improved(self.log_prior, self.q, alpha), self.log_prior)


def _contested(run: RunDecisions) -> list[_Scores]:
    """Return the decisions of a run that had at least two candidates."""
    return [_Scores.of(decision) for decision in run.decisions if len(decision["candidates"]) > 1]


def _favourites(scores: FloatArray) -> BoolArray:
    """Return `[A]` whether a score equals the largest, up to rounding."""
    favourites: BoolArray = np.isclose(scores, scores.max(), rtol=1e-9, atol=1e-12)
    return favourites


def _ranks(scores: FloatArray) -> FloatArray:
    """Return `[A]` ranks; equal scores get their mean rank."""
    below = (scores[:, None] > scores[None, :]).sum(axis=1)
    equal = (scores[:, None] == scores[None, :]).sum(axis=1)
    ranks: FloatArray = below + (equal - 1) / 2
    return ranks


def _margin(scores: FloatArray) -> float:
    second, best = np.sort(scores)[-2:]
    return float(best - second)


def _case(members: Sequence[_Scores], of: int) -> Case:
    margins = [[_margin(decision.prior), _margin(decision.q), _margin(decision.probabilities)] for decision in members]
    prior, q, improved_policy = np.mean(margins, axis=0)
    return Case(len(members) / of, float(prior), float(q), float(improved_policy))


def _has_words(runs: Sequence[RunDecisions]) -> bool:
    """Return whether all candidates have the probabilities of verdict words."""
    return all(
        candidate.get("p_good") is not None
        for run in runs
        for decision in run.decisions
        for candidate in decision["candidates"]
    )


def _mean_with_time(runs: Mapping[tuple[str, int], FloatArray]) -> Estimate | None:
    """Return the mean correlation with the step; runs with a constant value have none."""
    moving = {key: values for key, values in runs.items() if np.ptp(values) > 1e-9 * np.abs(values).max()}
    return _mean({key: _with_time(values) for key, values in moving.items()})


def _with_time(values: FloatArray) -> float:
    # Scaled, because squares of tiny probabilities underflow.
    return float(np.corrcoef(np.arange(len(values)), values / np.abs(values).max())[0, 1])


def _mean(values: Mapping[tuple[str, int], float]) -> Estimate | None:
    return estimate(values) if values else None


def _time_table(runs: Sequence[RunDecisions]) -> str:
    columns = {
        f"{name} runs": over_time(runs, success=success) for name, success in (("successful", True), ("failed", False))
    }
    headings = [f"{name} ({column.runs}, {column.decisions} decisions)" for name, column in columns.items()]
    names = next(iter(columns.values())).correlations
    rows = [
        [f"{name} of the chosen action", *(_cell(column.correlations[name]) for column in columns.values())]
        for name in names
    ]
    return table(["correlation with the step, n tasks", *headings], rows, "lrr") + "\n"


def _agreement_table(runs: Sequence[RunDecisions]) -> str:
    result = agreement(runs)
    rho = "-" if result.rank_correlation is None else f"{result.rank_correlation:+.2f} ({result.ranked:,} decisions)"
    same = result.same_favourite
    if same is None:
        return f"None of {result.of:,} decisions had two candidates.\n"
    error = "" if same.standard_error is None else f" ± {same.standard_error:.1%}"
    summary = (
        f"{result.decisions:,} of {result.of:,} decisions had two candidates or more. In {same.mean:.1%}{error} of "
        f"them (mean over {same.tasks} tasks) prior and Q have the same favourite; mean rank correlation {rho}.\n\n"
    )
    rows = []
    for name, case in result.cases.items():
        numbers = (case.prior_confidence, case.q_confidence, case.confidence)
        rows.append([name, f"{case.share:.1%}", *(f"{number:.2f}" for number in numbers)])
    headings = ["the choice follows", "share", "margin of the prior", "of Q", "of the improved policy"]
    return summary + table(headings, rows, "lrrrr") + "\n"


def _choice_table(runs: Sequence[RunDecisions]) -> str:
    rows = [
        [f"{row.alpha:g}", *(f"{share:.1%}" for share in (row.as_prior, row.as_q, row.as_made))]
        for row in choices(runs)
    ]
    headings = ["alpha", "chooses as the vote", "as the critic alone", "as was chosen"]
    return table(headings, rows, "lrrr") + "\n" if rows else ""


def _cell(mean: Estimate | None) -> str:
    if mean is None:
        return "-"
    error = "" if mean.standard_error is None else f" ± {mean.standard_error:.2f}"
    return f"{mean.mean:+.2f}{error} (n = {mean.tasks})"
