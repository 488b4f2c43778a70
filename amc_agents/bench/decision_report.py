"""What decisions say about prior and critic: LAC's tables 1, 2 and 12 from recorded decisions.

`A` distinct candidate actions of one decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.bench.decisions import RunDecisions
from amc_agents.bench.methods import ALPHAS
from amc_agents.bench.statistics import Estimate, estimate
from amc_agents.lac.improvement import choose, improved
from amc_agents.lac.types import BoolArray
from amc_agents.markdown import table
from amc_agents.types import FloatArray

LEAST_STEPS = 3
"""Decisions that a run needs for a correlation with time."""

Read = Callable[[Mapping[str, Any]], float]
"""A candidate's record -> a number."""
WITH_WORDS: Mapping[str, Read] = {
    "p(GOOD)": lambda one: one["p_good"],
    "p(BAD)": lambda one: one["p_bad"],
    "Q": lambda one: one["q"],
}
WITHOUT_WORDS: Mapping[str, Read] = {
    "p = sigmoid(Q)": lambda one: float(1 / (1 + np.exp(-one["q"]))),
    "Q": lambda one: one["q"],
}
"""Where the critic reads no words."""


class OverTime(NamedTuple):
    """How the opinion on chosen actions moves along runs: Pearson's r with the step, within each run (LAC, table 1)."""

    correlations: Mapping[str, Estimate | None]
    """Of "p(GOOD)", "p(BAD)" and "Q"; without the words' probabilities, of "Q" and "p = sigmoid(Q)". None where no run
    has a correlation: too few decisions, or one opinion all along."""
    runs: int
    """That have three decisions or more."""
    decisions: int
    """Of these."""


def over_time(played: Sequence[RunDecisions], *, success: bool) -> OverTime:
    """Correlation of the critic's opinion with time, over the runs that succeeded, or over those that failed."""
    long = [one for one in played if one.success == success and len(one.decisions) >= LEAST_STEPS]
    chosen = {(one.task, one.seed): [made["candidates"][made["chosen"]] for made in one.decisions] for one in long}
    read_of = WITH_WORDS if _words_are_known(played) else WITHOUT_WORDS
    return OverTime(
        {
            name: _mean_with_time({key: np.array([read(one) for one in made]) for key, made in chosen.items()})
            for name, read in read_of.items()
        },
        len(long),
        sum(map(len, chosen.values())),
    )


class Case(NamedTuple):
    """Decisions in which prior and Q stand in one relation to the choice (LAC, table 2).

    Confidence is the difference between the best candidate and the second.
    """

    share: float
    prior_confidence: float
    q_confidence: float
    """In log-odds."""
    confidence: float
    """Of the improved policy."""


class Agreement(NamedTuple):
    """How prior and critic go together, over the decisions that had at least two candidates."""

    decisions: int
    """With at least two candidates."""
    of: int
    """All."""
    same_favourite: Estimate | None
    """Share in which the action of the largest prior is that of the largest Q, within each run, over tasks; a tie
    counts where they can agree. None where no decision had two candidates."""
    rank_correlation: float | None
    """Mean of Spearman's rho between prior and Q; None where one of them never differs between candidates."""
    ranked: int
    """Decisions that have such a rho."""
    cases: Mapping[str, Case]
    """By whom the choice follows: "both", "prior alone", "Q alone", "neither"."""


def agreement(played: Sequence[RunDecisions]) -> Agreement:
    """How often the favourite of the prior is that of the critic, and whom the choice then follows."""
    by_run = {(one.task, one.seed): run for one in played if (run := _opened(one))}
    opened = [one for run in by_run.values() for one in run]
    found: dict[str, list[_Opinions]] = {name: [] for name in ("both", "prior alone", "Q alone", "neither")}
    for one in opened:
        prior, q = one.prior_agrees, one.q_agrees
        found["both" if prior and q else "prior alone" if prior else "Q alone" if q else "neither"].append(one)
    ranks = [rho for one in opened if (rho := one.rank_correlation) is not None]
    agreed = {key: float(np.mean([one.same_favourite for one in run])) for key, run in by_run.items()}
    return Agreement(
        decisions=len(opened),
        of=sum(len(one.decisions) for one in played),
        same_favourite=_mean(agreed),
        rank_correlation=float(np.mean(ranks)) if ranks else None,
        ranked=len(ranks),
        cases={name: _case(members, len(opened)) for name, members in found.items() if members},
    )


class Choices(NamedTuple):
    """What one weight of the critic would choose at the states that were met."""

    alpha: float
    as_prior: float
    """Share of choices that the vote would make too."""
    as_q: float
    """Share of choices that the critic alone would make too."""
    as_made: float
    """Share of choices that were made."""


def choices(played: Sequence[RunDecisions], alphas: Iterable[float] = ALPHAS) -> list[Choices]:
    """What other weights would choose (LAC, table 12, at the states met): over decisions with two candidates or more.

    Where a run would have gone with another weight, only a run with it can tell.
    """
    opened = [opinions for one in played for opinions in _opened(one)]
    if not opened:
        return []

    def share(alpha: float, other: Callable[[_Opinions], int]) -> float:
        return float(np.mean([one.choice(alpha) == other(one) for one in opened]))

    return [
        Choices(
            alpha,
            share(alpha, lambda one: one.choice(0.0)),
            share(alpha, lambda one: one.choice(math.inf)),
            share(alpha, lambda one: one.chosen),
        )
        for alpha in alphas
    ]


def markdown(played: Sequence[RunDecisions], labels: Mapping[str, str]) -> str:
    """The tables of every method whose decisions asked a critic, as Markdown.

    Args:
        played: the decisions.
        labels: method -> how tables print it, in their order.
    """
    parts = []
    for name, label in labels.items():
        mine = [one for one in played if one.method == name]
        if any(made["alpha"] != 0 for one in mine for made in one.decisions):
            parts.append(f"## {label}\n\n{_time_table(mine)}\n{_agreement_table(mine)}\n{_choice_table(mine)}")
    return "\n".join(parts)


class _Opinions(NamedTuple):
    """One decision as numbers."""

    log_prior: FloatArray
    q: FloatArray
    probabilities: FloatArray
    chosen: int

    @classmethod
    def of(cls, made: Mapping[str, Any]) -> _Opinions:
        candidates = made["candidates"]
        log_prior = [-math.inf if one["log_prior"] is None else one["log_prior"] for one in candidates]
        q, probabilities = ([one[name] for one in candidates] for name in ("q", "probability"))
        return cls(np.array(log_prior), np.array(q), np.array(probabilities), made["chosen"])

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
        return None if any(np.ptp(one) == 0 for one in ranks) else float(np.corrcoef(*ranks)[0, 1])

    def choice(self, alpha: float) -> int:
        return choose(improved(self.log_prior, self.q, alpha), self.log_prior)


def _opened(played: RunDecisions) -> list[_Opinions]:
    """The decisions of a run that had at least two candidates."""
    return [_Opinions.of(made) for made in played.decisions if len(made["candidates"]) > 1]


def _favourites(scores: FloatArray) -> BoolArray:
    """`[A]` True for the largest, and for what equals it up to rounding."""
    found: BoolArray = np.isclose(scores, scores.max(), rtol=1e-9, atol=1e-12)
    return found


def _ranks(scores: FloatArray) -> FloatArray:
    """`[A]` ranks; equal scores share the mean of theirs."""
    below = (scores[:, None] > scores[None, :]).sum(axis=1)
    equal = (scores[:, None] == scores[None, :]).sum(axis=1)
    ranks: FloatArray = below + (equal - 1) / 2
    return ranks


def _margin(scores: FloatArray) -> float:
    second, best = np.sort(scores)[-2:]
    return float(best - second)


def _case(members: Sequence[_Opinions], of: int) -> Case:
    margins = [[_margin(one.prior), _margin(one.q), _margin(one.probabilities)] for one in members]
    prior, q, whole = np.mean(margins, axis=0)
    return Case(len(members) / of, float(prior), float(q), float(whole))


def _words_are_known(played: Sequence[RunDecisions]) -> bool:
    return all(
        candidate.get("p_good") is not None
        for one in played
        for made in one.decisions
        for candidate in made["candidates"]
    )


def _mean_with_time(runs: Mapping[tuple[str, int], FloatArray]) -> Estimate | None:
    """Mean correlation with the step; runs with one value all along have none."""
    moving = {key: values for key, values in runs.items() if np.ptp(values) > 1e-9 * np.abs(values).max()}
    return _mean({key: _with_time(values) for key, values in moving.items()})


def _with_time(values: FloatArray) -> float:
    # Probabilities may be so small that their squares are 0.
    return float(np.corrcoef(np.arange(len(values)), values / np.abs(values).max())[0, 1])


def _mean(values: Mapping[tuple[str, int], float]) -> Estimate | None:
    return estimate(values) if values else None


def _time_table(played: Sequence[RunDecisions]) -> str:
    columns = {
        f"{name} runs": over_time(played, success=won) for name, won in (("successful", True), ("failed", False))
    }
    headings = [f"{name} ({one.runs}, {one.decisions} decisions)" for name, one in columns.items()]
    names = next(iter(columns.values())).correlations
    rows = [
        [f"{name} of the chosen action", *(_cell(one.correlations[name]) for one in columns.values())] for name in names
    ]
    return table(["correlation with the step, n tasks", *headings], rows, "lrr") + "\n"


def _agreement_table(played: Sequence[RunDecisions]) -> str:
    found = agreement(played)
    rho = "-" if found.rank_correlation is None else f"{found.rank_correlation:+.2f} ({found.ranked:,} decisions)"
    same = found.same_favourite
    if same is None:
        return f"None of {found.of:,} decisions had two candidates.\n"
    error = "" if same.standard_error is None else f" ± {same.standard_error:.1%}"
    told = (
        f"{found.decisions:,} of {found.of:,} decisions had two candidates or more. In {same.mean:.1%}{error} of them "
        f"(mean over {same.tasks} tasks) prior and Q have the same favourite; mean rank correlation {rho}.\n\n"
    )
    rows = []
    for name, one in found.cases.items():
        numbers = (one.prior_confidence, one.q_confidence, one.confidence)
        rows.append([name, f"{one.share:.1%}", *(f"{number:.2f}" for number in numbers)])
    headings = ["the choice follows", "share", "margin of the prior", "of Q", "of the improved policy"]
    return told + table(headings, rows, "lrrrr") + "\n"


def _choice_table(played: Sequence[RunDecisions]) -> str:
    rows = [
        [f"{one.alpha:g}", *(f"{share:.1%}" for share in (one.as_prior, one.as_q, one.as_made))]
        for one in choices(played)
    ]
    headings = ["alpha", "chooses as the vote", "as the critic alone", "as was chosen"]
    return table(headings, rows, "lrrr") + "\n" if rows else ""


def _cell(found: Estimate | None) -> str:
    if found is None:
        return "-"
    error = "" if found.standard_error is None else f" ± {found.standard_error:.2f}"
    return f"{found.mean:+.2f}{error} (n = {found.tasks})"
