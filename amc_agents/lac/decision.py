"""LAC: one decision, improved by a critic (LAC, eq. 1 to 7).

    sample K -> merge -> imagine -> Q -> prior x exp(alpha Q) -> choose

`K` samples, `A` distinct candidate actions. Whatever samples, scores texts or imagines is given as an object; nothing
here knows of a framework. What the arithmetic is: `amc_agents.lac.improvement`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import name_of
from amc_agents.critics.log_odds import ExplainedLogOdds, Judgements, LogOdds, OddsOfLastAction
from amc_agents.critics.uses import for_lac
from amc_agents.critics.validation import checked_values, failing_as_critic_error
from amc_agents.decisions.samples import Actor, GreedyActor, Sample, no_action, with_actions
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, PromptTooLong
from amc_agents.lac.improvement import choose, improved
from amc_agents.lac.prior import Opinion, listed_opinion, sampled_opinion
from amc_agents.lac.types import Candidate, Decision, Imagination, LacSettings, Rescorer
from amc_agents.types import Step, Trajectory

__all__ = [
    "Actor",
    "Candidate",
    "Decision",
    "GreedyActor",
    "Imagination",
    "LacSettings",
    "Rescorer",
    "Sample",
    "decide",
    "decide_among",
]


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
    """One decision at the newest state of a trajectory.

    Args:
        trajectory: what has happened so far, reflections included.
        actor: samples the candidates.
        critic: judges them: any critic that LAC takes (`amc_agents.critics.uses.for_lac`); None where
            `settings.use_critic` is off.
        settings: K, alpha, the prior, and what is switched off.
        imagination: the forward model, needed where `settings.depth` > 0.
        rescorer: needed by the prior "thoughts", and by "likelihood" where samples come without log-likelihoods.
        rng: needed by `settings.sample`.

    Raises:
        ConfigurationError: something that the settings need is not given.
        DecisionError: no sample could be read as an action.
        CriticError: the critic, the forward model or the rescorer failed. What the actor raises goes through.
    """
    _check(settings, critic, imagination, rng)
    if settings.prior == "thoughts" and rescorer is None:
        raise ConfigurationError('prior="thoughts" scores every action under every thought: it needs a rescorer')
    begun = time.perf_counter()
    samples, greedy, notes = await _sampled(actor, settings)
    merged = _merge(samples, greedy)
    shown = [_as_shown(found, greedy) for found in merged.values()]
    opinion, judged = await side_by_side(
        sampled_opinion(settings.prior, merged, greedy, rescorer),
        _judge(trajectory, shown, critic, settings, imagination),
    )
    decision = _choose(shown, opinion, judged, settings, rng)
    # Scoring texts goes on beside imagining and judging, and is no trip of its own unless neither is done.
    trips = 1 + max(int(opinion.rescored), judged.round_trips)
    return replace(decision, notes=(*notes, *decision.notes), round_trips=trips, seconds=time.perf_counter() - begun)


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
    """One decision among the actions that the world lists: all are candidates, under the exact prior over them.

    Args:
        trajectory: what has happened so far.
        actions: all that can be done; `settings.prior` plays no part.
        rescorer: scores them.
        critic: as in `decide`.
        settings: alpha, and what is switched off.
        actor: a policy that thinks before it acts: the prior is the mean over the thoughts of K samples. None: nothing
            is sampled, and actions are scored without a thought.
        imagination: as in `decide`.
        rng: as in `decide`.

    Raises:
        DecisionError: the list is empty, or no sample could be read as an action.
        ConfigurationError, CriticError: as in `decide`.
    """
    _check(settings, critic, imagination, rng)
    begun = time.perf_counter()
    listed = list(dict.fromkeys(actions))
    if not listed:
        raise DecisionError("expected a list of actions, got none")
    samples, greedy, notes = ([], None, []) if actor is None else await _sampled(actor, settings)
    thoughts = [one.thought for one in samples] or ["" if greedy is None else greedy.thought]
    merged = _merge(samples, greedy)
    shown = [_as_shown(merged.get(one) or [Sample(thoughts[0], one)], greedy, sampled=one in merged) for one in listed]
    opinion, judged = await side_by_side(
        listed_opinion(thoughts, listed, rescorer), _judge(trajectory, shown, critic, settings, imagination)
    )
    decision = _choose(shown, opinion, judged, settings, rng)
    trips = int(actor is not None) + max(int(opinion.rescored), judged.round_trips)
    return replace(decision, notes=(*notes, *decision.notes), round_trips=trips, seconds=time.perf_counter() - begun)


class _Shown(NamedTuple):
    """A distinct action, as the greedy turn shows it, else its first sample."""

    sample: Sample
    n: int = 0
    """Samples that do this."""
    greedy: bool = False


def _as_shown(found: Sequence[Sample], greedy: Sample | None, *, sampled: bool = True) -> _Shown:
    """An action as the samples that do it show it."""
    # The likeliest thought leads on best: a thought stays in the history, and the policy goes by it.
    best = next((one for one in found if one is greedy), found[0])
    n = sum(one is not greedy for one in found) if sampled else 0
    return _Shown(best, n, greedy=any(one is greedy for one in found))


class _Judged(NamedTuple):
    """`[A]` what the critic thinks of the candidates."""

    judgements: Judgements
    imagined: Sequence[tuple[Step, ...]]
    round_trips: int
    notes: tuple[str, ...] = ()


def _check(
    settings: LacSettings, critic: Any, imagination: Imagination | None, rng: np.random.Generator | None
) -> None:
    if settings.use_critic and critic is None:
        raise ConfigurationError("a critic is needed; without one set use_critic=False, which is a vote by the prior")
    if settings.use_critic and settings.depth and imagination is None:
        raise ConfigurationError(f"depth={settings.depth} imagines steps and needs an imagination; or set depth=0")
    if settings.sample and rng is None:
        raise ConfigurationError("sample=True draws the action and needs rng, a seeded numpy generator")


async def _sampled(actor: Actor, settings: LacSettings) -> tuple[list[Sample], Sample | None, list[str]]:
    """The samples that name an action, the greedy one if it is asked for, and notes on what was dropped."""
    if not settings.greedy:
        asked, best = await actor.sample(settings.k), None
    elif isinstance(actor, GreedyActor):
        asked, best = await side_by_side(actor.sample(settings.k), actor.greedy())
    else:
        raise ConfigurationError(f"greedy=True needs an actor with `greedy`, got {type(actor).__name__}")
    samples, notes = with_actions(asked, settings.k)
    if best is not None and not best.action.strip():
        notes.append("the greedy sample names no action and was dropped")
        best = None
    if not samples and best is None:
        raise no_action(len(asked))
    return samples, best, notes


def _merge(samples: Sequence[Sample], greedy: Sample | None) -> dict[str, list[Sample]]:
    """The samples of each action, in the order in which they came; the greedy one comes last."""
    merged: dict[str, list[Sample]] = {}
    for one in (*samples, *([] if greedy is None else [greedy])):
        merged.setdefault(one.action, []).append(one)
    return merged


async def _judge(
    trajectory: Trajectory,
    shown: Sequence[_Shown],
    critic: Any,
    settings: LacSettings,
    imagination: Imagination | None,
) -> _Judged:
    """Q of the candidates: at the action itself, or after an imagined rollout (eq. 1 and 3)."""
    size = len(shown)
    nothing = _Judged(Judgements(np.zeros(size), np.zeros(size, dtype=np.bool_)), [()] * size, 0)
    if not settings.use_critic:
        return nothing
    judge = for_lac(critic, returns=settings.returns)
    if settings.depth and isinstance(judge, OddsOfLastAction):
        raise ConfigurationError(
            f"{name_of(critic)} judges the last action, and after a rollout that is an imagined one: set depth=0"
        )
    candidates = taken = [trajectory.extended(Step(one.sample.action, thought=one.sample.thought)) for one in shown]
    try:
        if settings.depth and imagination is not None:
            with failing_as_critic_error("the forward model"):
                candidates = list(await imagination.imagine(taken))
            if len(candidates) != size:
                raise CriticError(f"the forward model gave {len(candidates)} trajectories, expected {size}")
        with failing_as_critic_error(f"critic {name_of(critic)}"):
            try:
                judgements = await _judgements(judge, candidates)
            except PromptTooLong:
                candidates, judgements = await _judged_as_far_as_read(judge, candidates, taken)
    except CriticError as error:
        if settings.on_critic_error == "raise":
            raise
        failed = f"the critic failed and the prior decided alone: {type(error).__name__}: {error}"
        unknown = Judgements(np.zeros(size), np.ones(size, dtype=np.bool_))
        return _Judged(unknown, [()] * size, settings.depth + 1, (failed,))
    imagined = [_imagined(one, len(trajectory.steps)) for one in candidates]
    notes = []
    if settings.depth and not all(imagined):
        notes.append(f"nothing could be imagined after {imagined.count(())} of {size} candidates")
    if judgements.flagged.any():
        flagged = judgements.flagged.sum()
        notes.append(f"the critic's answer is a bound or a stand-in for {flagged} of {size} candidates")
    asked = max(1, *map(len, imagined)) if settings.depth else 0
    return _Judged(judgements, imagined, asked + 1, tuple(notes))


async def _judged_as_far_as_read(
    judge: LogOdds, imagined: Sequence[Trajectory], taken: Sequence[Trajectory]
) -> tuple[list[Trajectory], Judgements]:
    """Candidates, each left at its action where the critic cannot read what was imagined after it, and judgements.

    A model that has lost its way writes on and on. An action that the critic cannot read itself is taken to be no
    better than the worst of the others, and flagged.

    Raises:
        PromptTooLong: none can be read, so it is the past that is too long.
    """
    found = [await _first_read(judge, pair) for pair in zip(imagined, taken, strict=True)]
    read = [one for one in found if one is not None]
    # The last word where there is nothing to judge by: the error of the past alone.
    judgements = await _judgements(judge, read or taken)
    worst = int(np.argmin(judgements.q))
    places = iter(range(len(read)))
    rows = [worst if one is None else next(places) for one in found]
    unread = np.array([one is None for one in found])
    left = [action if one is None else one for one, action in zip(found, taken, strict=True)]
    p_good, p_bad = judgements.p_good, judgements.p_bad
    return left, Judgements(
        judgements.q[rows],
        judgements.flagged[rows] | unread,
        None if p_good is None else p_good[rows],
        None if p_bad is None else p_bad[rows],
    )


async def _first_read(judge: LogOdds, forms: Sequence[Trajectory]) -> Trajectory | None:
    """The first that is not too long for the critic, or None."""
    for one in forms:
        try:
            await judge.log_odds([one])
        except PromptTooLong:
            continue
        return one
    return None


def _imagined(candidate: Trajectory, past: int) -> tuple[Step, ...]:
    """The steps of a rollout: none where the action still has no observation."""
    steps = candidate.steps[past:]
    return steps if steps[0].observation else ()


async def _judgements(judge: LogOdds, candidates: Sequence[Trajectory]) -> Judgements:
    size, name = len(candidates), name_of(judge)
    if not isinstance(judge, ExplainedLogOdds):
        return Judgements(checked_values(await judge.log_odds(candidates), size, name), np.zeros(size, dtype=np.bool_))
    found = await judge.judgements(candidates)
    return found._replace(q=checked_values(found.q, size, name))


def _choose(
    shown: Sequence[_Shown],
    opinion: Opinion,
    judged: _Judged,
    settings: LacSettings,
    rng: np.random.Generator | None,
) -> Decision:
    """The improved policy over the candidates, and its choice (eq. 4 to 7)."""
    if not np.isfinite(opinion.log_prior).any():
        raise DecisionError(f"no candidate has any probability under the prior {opinion.name!r}")
    log_prior = opinion.log_prior - np.logaddexp.reduce(opinion.log_prior)
    alpha = settings.alpha if settings.use_critic else 0.0
    q, flagged, p_good, p_bad = judged.judgements
    probabilities = improved(log_prior, q, alpha)
    chosen = choose(probabilities, log_prior, rng if settings.sample else None)
    candidates = tuple(
        Candidate(
            thought=one.sample.thought,
            action=one.sample.action,
            n=one.n,
            log_prior=float(log_prior[i]),
            q=float(q[i]),
            probability=float(probabilities[i]),
            imagined=judged.imagined[i],
            flagged=bool(flagged[i]),
            greedy=one.greedy,
            p_good=None if p_good is None else float(p_good[i]),
            p_bad=None if p_bad is None else float(p_bad[i]),
        )
        for i, one in enumerate(shown)
    )
    return Decision(candidates, chosen, opinion.name, alpha, shown[chosen].sample, notes=judged.notes)
