"""LAC: one decision, improved by a critic (LAC, eq. 1 to 7).

    sample K -> merge -> imagine -> Q -> prior x exp(alpha Q) -> choose

`K` samples, `A` distinct candidate actions. Whatever samples, scores texts or imagines is given as an object; nothing
here knows of a framework. What the arithmetic is: `amc_agents.methods.improvement`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from amc_agents.critics.log_odds import LogOdds, OddsOfLastAction
from amc_agents.critics.uses import for_lac
from amc_agents.critics.validation import checked_values
from amc_agents.errors import ConfigurationError, CriticError, DecisionError
from amc_agents.methods.improvement import choose, improved
from amc_agents.methods.lac_prior import Opinion, listed_opinion, sampled_opinion
from amc_agents.methods.lac_types import (
    Actor,
    BoolArray,
    Candidate,
    Decision,
    FlaggedLogOdds,
    GreedyActor,
    Imagination,
    LacSettings,
    Rescorer,
    Sample,
)
from amc_agents.types import FloatArray, Step, Trajectory

__all__ = [
    "Actor",
    "Candidate",
    "Decision",
    "FlaggedLogOdds",
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
    shown = [
        _Shown(
            # The likeliest thought leads on best: a thought stays in the history, and the policy goes by it.
            next((one for one in found if one is greedy), found[0]),
            n=sum(one is not greedy for one in found),
            greedy=any(one is greedy for one in found),
        )
        for found in merged.values()
    ]
    opinion, judged = await _side_by_side(
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
    thoughts: Sequence[str] = ("",),
    imagination: Imagination | None = None,
    rng: np.random.Generator | None = None,
) -> Decision:
    """One decision among the actions that the world lists: the exact prior over them, nothing is sampled.

    Args:
        trajectory: what has happened so far.
        actions: all that can be done; `settings.k`, `prior` and `greedy` play no part.
        rescorer: scores them.
        critic: as in `decide`.
        settings: alpha, and what is switched off.
        thoughts: what the policy thought before; of several, the mean is taken.
        imagination: as in `decide`.
        rng: as in `decide`.

    Raises:
        DecisionError: the list is empty.
        ConfigurationError, CriticError: as in `decide`.
    """
    _check(settings, critic, imagination, rng)
    begun = time.perf_counter()
    listed = list(dict.fromkeys(actions))
    if not listed or not thoughts:
        raise DecisionError("expected a list of actions and at least one thought (it may be empty), got none")
    shown = [_Shown(Sample(thoughts[0], action)) for action in listed]
    opinion, judged = await _side_by_side(
        listed_opinion(thoughts, listed, rescorer), _judge(trajectory, shown, critic, settings, imagination)
    )
    decision = _choose(shown, opinion, judged, settings, rng)
    trips = max(int(opinion.rescored), judged.round_trips)
    return replace(decision, round_trips=trips, seconds=time.perf_counter() - begun)


class _Shown(NamedTuple):
    """A distinct action, as the greedy turn shows it, else its first sample."""

    sample: Sample
    n: int = 0
    """Samples that do this."""
    greedy: bool = False


class _Judged(NamedTuple):
    """`[A]` what the critic thinks of the candidates."""

    q: FloatArray
    flagged: BoolArray
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
        asked, best = await _side_by_side(actor.sample(settings.k), actor.greedy())
    else:
        raise ConfigurationError(f"greedy=True needs an actor with `greedy`, got {type(actor).__name__}")
    notes = [] if len(asked) == settings.k else [f"{settings.k} samples were asked for and {len(asked)} came"]
    samples = [one for one in asked if one.action.strip()]
    if len(samples) < len(asked):
        notes.append(f"{len(asked) - len(samples)} of {len(asked)} samples name no action and were dropped")
    if best is not None and not best.action.strip():
        notes.append("the greedy sample names no action and was dropped")
        best = None
    if not samples and best is None:
        raise DecisionError(
            f"none of {len(asked)} samples names an action: look at the policy's prompt, at what it writes, and at the "
            "most tokens that it may write"
        )
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
    nothing = _Judged(np.zeros(size), np.zeros(size, dtype=np.bool_), [()] * size, 0)
    if not settings.use_critic:
        return nothing
    judge = for_lac(critic, returns=settings.returns)
    if settings.depth and isinstance(judge, OddsOfLastAction):
        raise ConfigurationError(
            f"{type(critic).__name__} judges the last action, and after a rollout that is an imagined one: set depth=0"
        )
    candidates = [trajectory.extended(Step(one.sample.action, thought=one.sample.thought)) for one in shown]
    try:
        if settings.depth and imagination is not None:
            candidates = list(await imagination.imagine(candidates))
            if len(candidates) != size:
                raise CriticError(f"the forward model gave {len(candidates)} trajectories, expected {size}")
        q, flagged = await _q(judge, candidates)
    except CriticError as error:
        if settings.on_critic_error == "raise":
            raise
        failed = f"the critic failed and the prior decided alone: {type(error).__name__}: {error}"
        return nothing._replace(flagged=np.ones(size, dtype=np.bool_), round_trips=settings.depth + 1, notes=(failed,))
    imagined = [_imagined(one, len(trajectory.steps)) for one in candidates]
    notes = []
    if settings.depth and not all(imagined):
        notes.append(f"nothing could be imagined after {imagined.count(())} of {size} candidates")
    if flagged.any():
        notes.append(f"the critic's answer is a bound or a stand-in for {flagged.sum()} of {size} candidates")
    asked = max(1, *map(len, imagined)) if settings.depth else 0
    return _Judged(q, flagged, imagined, asked + 1, tuple(notes))


def _imagined(candidate: Trajectory, past: int) -> tuple[Step, ...]:
    """The steps of a rollout: none where the action still has no observation."""
    steps = candidate.steps[past:]
    return steps if steps[0].observation else ()


async def _q(judge: LogOdds, candidates: Sequence[Trajectory]) -> tuple[FloatArray, BoolArray]:
    size, name = len(candidates), type(judge).__name__
    if isinstance(judge, FlaggedLogOdds):
        q, flagged = await judge.flagged_log_odds(candidates)
        return checked_values(q, size, name), np.asarray(flagged, dtype=np.bool_)
    return checked_values(await judge.log_odds(candidates), size, name), np.zeros(size, dtype=np.bool_)


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
    probabilities = improved(log_prior, judged.q, alpha)
    chosen = choose(probabilities, log_prior, rng if settings.sample else None)
    candidates = tuple(
        Candidate(
            thought=one.sample.thought,
            action=one.sample.action,
            n=one.n,
            log_prior=float(log_prior[i]),
            q=float(judged.q[i]),
            probability=float(probabilities[i]),
            imagined=judged.imagined[i],
            flagged=bool(judged.flagged[i]),
            greedy=one.greedy,
        )
        for i, one in enumerate(shown)
    )
    return Decision(candidates, chosen, opinion.name, alpha, shown[chosen].sample, notes=judged.notes)


async def _side_by_side(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """What all of them give; where one fails, the others are given up and its error is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
