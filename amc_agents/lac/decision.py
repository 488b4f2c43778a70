"""LAC: a decision improved by a critic (LAC, eq. 1 to 7).

    sample K -> merge -> imagine -> Q -> prior x exp(alpha Q) -> choose

`K` samples, `A` distinct candidate actions. Actor, critic, forward model and rescorer are objects, so the module is
independent of any framework. `amc_agents.lac.improvement` has the arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import checked_values, failing_as_critic_error, name_of
from amc_agents.critics.uses import ExplainedLogOdds, Judgements, LogOdds, OddsOfLastAction, for_lac
from amc_agents.decisions import Actor, GreedyActor, Sample, no_action, with_actions
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, PromptTooLong, UnreadableAnswer
from amc_agents.lac.improvement import Opinion, choose, improved, listed_opinion, sampled_opinion
from amc_agents.lac.types import Candidate, Decision, Imagination, LacSettings, Rescorer
from amc_agents.quoting import quoted
from amc_agents.types import Step, Trajectory


async def decide(
    trajectory: Trajectory,
    actor: Actor,
    critic: Any,
    settings: LacSettings,
    *,
    imagination: Imagination | None = None,
    rescorer: Rescorer | None = None,
    rng: np.random.Generator | None = None,
) -> Decision:
    """Decide among sampled actions at the newest state of a trajectory.

    Args:
        trajectory: the past, reflections included.
        actor: samples the candidates.
        critic: judges them: any critic that LAC takes (`amc_agents.critics.uses.for_lac`); None if
            `settings.use_critic` is False.
        settings: K, alpha, the prior, and what is switched off.
        imagination: the forward model, required if `settings.depth` > 0.
        rescorer: required by the prior "thoughts", and by "likelihood" if samples have no log-likelihoods.
        rng: required by `settings.sample`.

    Raises:
        ConfigurationError: an object that the settings require is missing.
        DecisionError: no sample could be parsed as an action.
        CriticError: the critic, the forward model or the rescorer failed. Errors of the actor are not wrapped.
    """
    _check(settings, critic, imagination, rng)
    if settings.prior == "thoughts" and rescorer is None:
        raise ConfigurationError('prior="thoughts" scores every action under every thought: it needs a rescorer')
    start = time.perf_counter()
    samples, greedy, notes = await _sample(actor, settings)
    merged = _merge(samples, greedy)
    shown = [_shown(group, greedy) for group in merged.values()]
    opinion, judged = await side_by_side(
        sampled_opinion(settings.prior, merged, greedy, rescorer),
        judge_candidates(_candidates(trajectory, shown), critic, settings, imagination),
    )
    decision = _choose(shown, opinion, judged, settings, rng)
    # Scoring texts is concurrent with imagining and judging.
    trips = 1 + max(int(opinion.rescored), judged.round_trips)
    return replace(decision, notes=(*notes, *decision.notes), round_trips=trips, seconds=time.perf_counter() - start)


async def decide_among(
    trajectory: Trajectory,
    actions: Sequence[str],
    rescorer: Rescorer,
    critic: Any,
    settings: LacSettings,
    *,
    actor: Actor | None = None,
    imagination: Imagination | None = None,
    rng: np.random.Generator | None = None,
) -> Decision:
    """Decide among all actions that the world lists, under the exact prior over them.

    Args:
        trajectory: the past.
        actions: all possible actions; `settings.prior` is not used.
        rescorer: scores them.
        critic: as in `decide`.
        settings: alpha, and what is switched off.
        actor: a policy that thinks before it acts: the prior is then the mean over the thoughts of K samples. None: no
            samples; actions are scored without a thought.
        imagination: as in `decide`.
        rng: as in `decide`.

    Raises:
        DecisionError: the list is empty, or no sample could be parsed as an action.
        ConfigurationError, CriticError: as in `decide`.
    """
    _check(settings, critic, imagination, rng)
    start = time.perf_counter()
    listed = list(dict.fromkeys(actions))
    if not listed:
        raise DecisionError("expected a list of actions, got an empty list")
    samples, greedy, notes = ([], None, []) if actor is None else await _sample(actor, settings)
    thoughts = [sample.thought for sample in samples] or ["" if greedy is None else greedy.thought]
    merged = _merge(samples, greedy)
    shown = [
        _shown(merged.get(action) or [Sample(thoughts[0], action)], greedy, sampled=action in merged)
        for action in listed
    ]
    opinion, judged = await side_by_side(
        listed_opinion(thoughts, listed, rescorer),
        judge_candidates(_candidates(trajectory, shown), critic, settings, imagination),
    )
    decision = _choose(shown, opinion, judged, settings, rng)
    trips = int(actor is not None) + max(int(opinion.rescored), judged.round_trips)
    return replace(decision, notes=(*notes, *decision.notes), round_trips=trips, seconds=time.perf_counter() - start)


class _Shown(NamedTuple):
    """A distinct action, represented by the greedy turn if it takes this action, else by its first sample."""

    sample: Sample
    n: int = 0
    """Number of samples that take this action."""
    greedy: bool = False


def _shown(group: Sequence[Sample], greedy: Sample | None, *, sampled: bool = True) -> _Shown:
    """Choose the representative of the samples that take an action."""
    # The thought stays in the history and guides the policy: the most likely thought is best.
    best = next((sample for sample in group if sample is greedy), group[0])
    n = sum(sample is not greedy for sample in group) if sampled else 0
    return _Shown(best, n, greedy=any(sample is greedy for sample in group))


def _candidates(trajectory: Trajectory, shown: Sequence[_Shown]) -> list[Trajectory]:
    samples = [action.sample for action in shown]
    return [trajectory.extended(Step(sample.action, thought=sample.thought)) for sample in samples]


def _check(
    settings: LacSettings, critic: Any, imagination: Imagination | None, rng: np.random.Generator | None
) -> None:
    if settings.use_critic and critic is None:
        raise ConfigurationError(
            "expected a critic, got none: pass critic=, or set use_critic=False, which is a vote by the prior"
        )
    if settings.use_critic and settings.depth and imagination is None:
        raise ConfigurationError(f"depth={settings.depth} imagines steps and needs an imagination; or set depth=0")
    if settings.sample and rng is None:
        raise ConfigurationError("sample=True draws the action and needs rng, a seeded numpy generator")


async def _sample(actor: Actor, settings: LacSettings) -> tuple[list[Sample], Sample | None, list[str]]:
    """Return the samples that name an action, the greedy turn if requested, and notes on dropped samples."""
    if not settings.greedy:
        drawn, greedy = await actor.sample(settings.k), None
    elif isinstance(actor, GreedyActor):
        drawn, greedy = await side_by_side(actor.sample(settings.k), actor.greedy())
    else:
        raise ConfigurationError(f"greedy=True needs an actor with `greedy`, got {type(actor).__name__}")
    samples, notes = with_actions(drawn, settings.k)
    if greedy is not None and not greedy.action.strip():
        notes.append("the greedy sample names no action and was dropped")
        greedy = None
    if not samples and greedy is None:
        raise no_action(len(drawn))
    return samples, greedy, notes


def _merge(samples: Sequence[Sample], greedy: Sample | None) -> dict[str, list[Sample]]:
    """Group the samples by action, in the order of their first sample; the greedy turn comes last."""
    merged: dict[str, list[Sample]] = {}
    for sample in (*samples, *([] if greedy is None else [greedy])):
        merged.setdefault(sample.action, []).append(sample)
    return merged


def _choose(
    shown: Sequence[_Shown],
    opinion: Opinion,
    judged: Judged,
    settings: LacSettings,
    rng: np.random.Generator | None,
) -> Decision:
    """Compute the improved policy over the candidates and choose an action (eq. 4 to 7)."""
    if not np.isfinite(opinion.log_prior).any():
        raise DecisionError(f"no candidate has any probability under the prior {quoted(opinion.name)}")
    log_prior = opinion.log_prior - np.logaddexp.reduce(opinion.log_prior)
    alpha = settings.alpha if settings.use_critic else 0.0
    q, flagged, p_good, p_bad = judged.judgements
    probabilities = improved(log_prior, q, alpha)
    chosen = choose(probabilities, log_prior, rng if settings.sample else None)
    candidates = tuple(
        Candidate(
            thought=action.sample.thought,
            action=action.sample.action,
            n=action.n,
            log_prior=float(log_prior[i]),
            q=float(q[i]),
            probability=float(probabilities[i]),
            imagined=judged.imagined[i],
            flagged=bool(flagged[i]),
            greedy=action.greedy,
            p_good=None if p_good is None else float(p_good[i]),
            p_bad=None if p_bad is None else float(p_bad[i]),
        )
        for i, action in enumerate(shown)
    )
    return Decision(candidates, chosen, opinion.name, alpha, shown[chosen].sample, notes=judged.notes)


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
