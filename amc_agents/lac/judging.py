"""Judge the candidates of a decision: Q at the action itself, or after an imagined rollout (LAC, eq. 1 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.critics.adapting import checked_values, failing_as_critic_error, name_of
from amc_agents.critics.uses import ExplainedLogOdds, Judgements, LogOdds, OddsOfLastAction, for_lac
from amc_agents.errors import ConfigurationError, CriticError, PromptTooLong, UnreadableAnswer
from amc_agents.lac.types import Imagination, LacSettings
from amc_agents.types import Step, Trajectory


class Judged(NamedTuple):
    """The judgements of `A` candidates."""

    judgements: Judgements
    """`[A]` Q with its flags and word probabilities."""
    imagined: Sequence[tuple[Step, ...]]
    """`[A]` the rollouts; empty without imagination."""
    round_trips: int
    notes: tuple[str, ...] = ()


async def judge_candidates(
    candidates: Sequence[Trajectory], critic: Any, settings: LacSettings, imagination: Imagination | None
) -> Judged:
    """Judge candidates by the critic, after imagined rollouts if the settings ask for them.

    Args:
        candidates: `[A]` trajectories that end in the candidate action, which has no observation yet.
        critic: any critic that LAC takes; not called if `settings.use_critic` is False.
        settings: the settings of the decision.
        imagination: the forward model.

    Raises:
        ConfigurationError: the critic cannot judge imagined steps.
        CriticError: the critic or the forward model failed, unless `settings.on_critic_error` is "uniform".
    """
    size = len(candidates)
    if not settings.use_critic:
        return _unjudged(size, flagged=False, round_trips=0)
    judge = for_lac(critic, returns=settings.returns)
    if settings.depth and isinstance(judge, OddsOfLastAction):
        raise ConfigurationError(
            f"{name_of(critic)} judges the last action, which is imaginary after a rollout: set depth=0"
        )
    try:
        rollouts = await _rollouts(candidates, imagination if settings.depth else None)
        with failing_as_critic_error(f"critic {name_of(critic)}"):
            try:
                judgements = await _judgements(judge, rollouts)
            except PromptTooLong:
                rollouts, judgements = await _judged_without_long_rollouts(judge, rollouts, candidates)
    except CriticError as error:
        if settings.on_critic_error == "raise":
            raise
        note = f"the critic failed and the prior decided alone: {type(error).__name__}: {error}"
        return _unjudged(size, flagged=True, round_trips=settings.depth + 1, notes=(note,))
    imagined = [
        _imagined(rollout, len(candidate.steps) - 1) for rollout, candidate in zip(rollouts, candidates, strict=True)
    ]
    imagined_steps = max(1, *map(len, imagined)) if settings.depth else 0
    return Judged(judgements, imagined, imagined_steps + 1, _notes(judgements, imagined, settings.depth))


def _unjudged(size: int, *, flagged: bool, round_trips: int, notes: tuple[str, ...] = ()) -> Judged:
    return Judged(Judgements(np.zeros(size), np.full(size, flagged)), [()] * size, round_trips, notes)


async def _rollouts(candidates: Sequence[Trajectory], imagination: Imagination | None) -> Sequence[Trajectory]:
    if imagination is None:
        return candidates
    with failing_as_critic_error("the forward model"):
        rollouts = list(await imagination.imagine(candidates))
    if len(rollouts) != len(candidates):
        raise CriticError(f"the forward model gave {len(rollouts)} trajectories, expected {len(candidates)}")
    return rollouts


async def _judged_without_long_rollouts(
    judge: LogOdds, rollouts: Sequence[Trajectory], candidates: Sequence[Trajectory]
) -> tuple[list[Trajectory], Judgements]:
    """Replace each rollout that is too long for the critic by its bare candidate, and judge again.

    A forward model that loses track can write without end. A candidate that is too long even without a rollout gets the
    lowest Q of the others, and is flagged.

    Raises:
        PromptTooLong: all candidates are too long, so the past itself is.
    """
    shortened = [await _first_readable(judge, pair) for pair in zip(rollouts, candidates, strict=True)]
    readable = [form for form in shortened if form is not None]
    # If nothing is readable, judging the bare candidates raises the error.
    judgements = await _judgements(judge, readable or candidates)
    worst = int(np.argmin(judgements.q))
    places = iter(range(len(readable)))
    rows = [worst if form is None else next(places) for form in shortened]
    unread = np.array([form is None for form in shortened])
    judged = [candidate if form is None else form for form, candidate in zip(shortened, candidates, strict=True)]
    p_good, p_bad = judgements.p_good, judgements.p_bad
    return judged, Judgements(
        judgements.q[rows],
        judgements.flagged[rows] | unread,
        None if p_good is None else p_good[rows],
        None if p_bad is None else p_bad[rows],
    )


async def _first_readable(judge: LogOdds, forms: Sequence[Trajectory]) -> Trajectory | None:
    """Return the first form that is not too long for the critic, or None."""
    for form in forms:
        try:
            await judge.log_odds([form])
        except PromptTooLong:
            continue
        return form
    return None


async def _judgements(judge: LogOdds, candidates: Sequence[Trajectory]) -> Judgements:
    size, name = len(candidates), name_of(judge)
    if not isinstance(judge, ExplainedLogOdds):
        try:
            q = checked_values(await judge.log_odds(candidates), size, name)
        except UnreadableAnswer as error:
            # The mean of the others neither favours nor punishes a candidate; without others, the prior decides.
            known = np.isfinite(error.values)
            return Judgements(np.where(known, error.values, error.values[known].mean() if known.any() else 0.0), ~known)
        return Judgements(q, np.zeros(size, dtype=np.bool_))
    judgements = await judge.judgements(candidates)
    return judgements._replace(q=checked_values(judgements.q, size, name))


def _imagined(rollout: Trajectory, past: int) -> tuple[Step, ...]:
    """Return the steps of a rollout; empty if the action still has no observation."""
    steps = rollout.steps[past:]
    return steps if steps[0].observation else ()


def _notes(judgements: Judgements, imagined: Sequence[tuple[Step, ...]], depth: int) -> tuple[str, ...]:
    size, notes = len(imagined), []
    if depth and not all(imagined):
        notes.append(f"nothing could be imagined after {imagined.count(())} of {size} candidates")
    if judgements.flagged.any():
        flagged = judgements.flagged.sum()
        notes.append(f"the critic's answer is a bound or a stand-in for {flagged} of {size} candidates")
    return tuple(notes)
