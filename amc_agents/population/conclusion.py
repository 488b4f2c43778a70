"""Conclude a run: select the answer and build the `Run`."""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from amc_agents import smc
from amc_agents.commits import Commit, DeferredCalls
from amc_agents.errors import AllWeightsZero, BudgetExhausted, RunTimedOut
from amc_agents.logs import log, room_logger
from amc_agents.population.features.search_notes import reward_notes, search_notes
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt
from amc_agents.run import Population, Run
from amc_agents.runtime.world import Worlds
from amc_agents.settings import Select
from amc_agents.usage import Usage

_notes = room_logger(__name__).getChild("notes")
"""The notes of runs have a logger of their own below the room's, which `quiet_notes` silences."""
_counted: list[Counter[str]] = []
"""The notes that `counted_notes` gathers, innermost last."""

ARCHIVED = -1
"""`Run.best_index` of a winner from the archive."""


class Conclusion(NamedTuple):
    """The result of a run, and the particle whose trajectory is the answer."""

    run: Run
    winner: Particle


def conclude(system: ParticleSystem) -> Conclusion:
    """Select the answer and build the `Run`.

    Raises:
        AllWeightsZero: no particle has a positive weight.
        RunTimedOut: the run's time limit passed before any particle finished.
        BudgetExhausted: the budget ended the run before any particle finished.
    """
    if _was_cut(system):
        system.notes.append(_cut_note(system))
    population = population_of(system)
    winner, index = _winner(system, population)
    system.notes += _final_notes(system)
    run = Run(
        best=system.runner.trajectory_of(winner),
        best_index=index,
        population=population,
        history=tuple(system.history),
        log_evidence=system.log_evidence,
        usage=system.meter.read(),
        seed=system.seed,
        config=system.settings.as_plain(),
        select=system.settings.pick,
        deployable=not system.settings.rewards_observed,
        beta=system.beta,
        notes=tuple(system.notes),
        outputs=tuple(particle.state for particle in system.everyone),
        best_output=winner.state,
        stopped_by=system.stopped_by,
        usage_by_fate=system.runner.ledger.usage_by_fate(
            winner, system.everyone, system.meter.read().get("policy", Usage())
        ),
        usage_by_model=system.meter.by_model(),
        commits=tuple(system.commits),
        deferred=DeferredCalls(
            Commit(call.name, dict(call.args), call.call_id, None, "not run") for call in winner.door.deferred
        ),
    )
    return Conclusion(run, winner)


def _was_cut(system: ParticleSystem) -> bool:
    """True if a limit ended the run, so that only finished particles are eligible."""
    return system.stopped_by in ("budget", "run_timeout")


def _cut_note(system: ParticleSystem) -> str:
    finished = sum(particle.finished and particle.error is None for particle in system.everyone)
    if not finished:
        raise _nothing_finished(system)
    limit, budget = system.deadline.limit_s, system.settings.budget
    reason = f"run_timeout={limit:g} s passed" if system.stopped_by == "run_timeout" else f"the budget ended: {budget}"
    return (
        f"{reason}: the answer is the best of {finished} finished trajectories; the other particles are unfinished "
        "and log Z is not known"
    )


def _nothing_finished(system: ParticleSystem) -> Exception:
    trajectories = [system.runner.trajectory_of(particle) for particle in system.everyone]
    budget = system.settings.budget
    if system.stopped_by == "budget" and budget is not None:
        return BudgetExhausted(budget.limits, budget.spent, trajectories=trajectories, usage=system.meter.read())
    return RunTimedOut(system.deadline.limit_s or 0.0, trajectories)


def population_of(system: ParticleSystem) -> Population:
    """Return the current particles, their weights and values."""
    weights, retired = system.weights, system.retired
    return Population(
        trajectories=tuple(system.runner.trajectory_of(particle) for particle in system.everyone),
        log_weights=system.log_weights,
        log_weights_since=np.array([*weights.log_weights_since, *(particle.log_weight_since for particle in retired)]),
        values=np.array([*system.values, *(particle.value for particle in retired)]),
        failed=tuple(particle.error is not None for particle in system.everyone),
    )


def _winner(system: ParticleSystem, population: Population) -> tuple[Particle, int]:
    """Return the selected particle and its index."""
    if system.answer is not None:
        return system.answer, next(
            (i for i, particle in enumerate(system.everyone) if particle is system.answer), ARCHIVED
        )
    everyone, pick, archived = system.everyone, system.pick, system.archive
    eligible = _eligible(system, population)
    if not np.isfinite(eligible.log_weights).any():
        raise AllWeightsZero(len(everyone), "the end of the run")
    if pick == "value" and not np.isfinite(eligible.values).any():
        system.notes.append("no particle's final value is known: the answer was selected by weight")
    index = select_index(system.rng, eligible, pick)
    winner = everyone[index]
    if pick == "return" and archived is not None and archived.return_ > winner.return_:
        return archived, ARCHIVED
    return winner, index


def _eligible(system: ParticleSystem, population: Population) -> Population:
    """Return the population with weight 0 for particles that cannot be picked."""
    leaders = system.standing().leaders
    if leaders:
        kept = np.isin(np.arange(len(system.everyone)), leaders)
        return replace(population, log_weights=np.where(kept, population.log_weights, -np.inf))
    cut = _was_cut(system) or system.stopped_by == "stop_at"
    failed = [particle.error is not None for particle in system.everyone]  # Also since the last weighing.
    out = failed | np.array([particle.running and (particle.held or cut) for particle in system.everyone])
    if system.stopped_by == "stop_at":  # The run ended because a finished particle reached it.
        out |= np.array([particle.return_ < (system.settings.stop_at or 0.0) for particle in system.everyone])
    return replace(
        population,
        log_weights=np.where(out, -np.inf, population.log_weights),
        values=np.where(out, np.nan, population.values),
    )


def _final_notes(system: ParticleSystem) -> list[str]:
    settings = system.settings
    system.compare_twins()
    notes = system.twins.notes(len(system.particles))
    notes += search_notes(system.history, settings, system.beta, stopped=system.cut_short)
    for note in notes:
        warn_once(note)
    return reward_notes([particle.return_ for particle in system.everyone], settings) + notes


def closing_notes(worlds: Worlds) -> list[str]:
    """Return a note for the run if worlds could not be closed."""
    failures = worlds.close_errors
    if not failures:
        return []
    return [
        f"worlds that could not be closed: {len(failures)} ({type(failures[0]).__name__}: {excerpt(str(failures[0]))})"
    ]


def warn_once(note: str) -> None:
    """Log a note about settings once, even if many runs have the same settings."""
    if _counted:
        _counted[-1][note] += 1
    else:
        _warn(note)


@functools.lru_cache(maxsize=128)
def _warn(note: str) -> None:
    log(_notes, logging.WARNING, "run.noted", "%(note)s", note=note)


@contextmanager
def counted_notes() -> Iterator[None]:
    """Log the notes of the runs inside the `with` block after it, each once with the number of its runs.

    Of notes that differ only in their numbers, the most frequent is logged for all.
    """
    notes: Counter[str] = Counter()
    _counted.append(notes)
    try:
        yield
    finally:
        _counted.remove(notes)
        alike: dict[str, Counter[str]] = {}
        for note, n_runs in notes.items():
            alike.setdefault(re.sub(r"\d+(\.\d+)?", "#", note), Counter())[note] += n_runs
        for each in alike.values():
            note, n_runs = each.most_common(1)[0][0], each.total()
            _warn(note if n_runs == 1 else f"{note} ({n_runs} runs)")


@contextmanager
def quiet_notes() -> Iterator[None]:
    """Do not log the notes of runs inside the `with` block. The runs keep them.

    A comparison has easy tasks whose particles are all identical, and a collection resamples without a critic.
    """
    level = _notes.level
    _notes.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _notes.setLevel(level)


def select_index(rng: np.random.Generator, population: Population, select: Select) -> int:
    """Return the index of the selected particle; failed particles are never selected.

    A value is NaN if the critic failed under `on_critic_error="uniform"`. "value" selects among the particles with a
    known value. If no value is known, it selects by weight, which contains the critic's earlier values.

    Args:
        rng: random generator for "sample".
        population: at least one particle has a positive weight.
        select: "return", "value", "weight" or "sample", as in `amc`.
    """
    alive = np.isfinite(population.log_weights)
    known = alive & np.isfinite(population.values)
    if select == "sample":
        return int(rng.choice(len(alive), p=smc.normalised(population.log_weights)))
    if select == "return":
        scores = np.array([trajectory.return_ for trajectory in population.trajectories])
    elif select == "value" and known.any():
        alive, scores = known, population.values
    else:
        # Absolute weights: those since the last resampling cover other steps for retired particles.
        scores = population.log_weights
    return int(np.argmax(np.where(alive, scores, -np.inf)))
