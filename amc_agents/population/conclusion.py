"""Conclude a run: select the answer, build the `Run`, and log its notes."""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from amc_agents import smc
from amc_agents.commits import Commit, DeferredCalls
from amc_agents.errors import AllWeightsZero, PopulationError
from amc_agents.logs import log, room_logger
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt, quoted
from amc_agents.run import Population, Run
from amc_agents.runtime.world import Worlds
from amc_agents.settings import Select

_log = room_logger(__name__)
_notes = _log.getChild("notes")
"""The notes of runs have a logger of their own below the room's, which `quiet_notes` silences."""
_counted: list[Counter[str]] = []
"""The notes that `counted_notes` gathers, innermost last."""

ARCHIVED = -1
"""`Run.best_index` of a winner from the archive."""


def choose(system: ParticleSystem) -> tuple[Particle, int]:
    """Return the particle whose trajectory is the answer, and its index.

    Raises:
        AllWeightsZero: no particle has a positive weight.
        PopulationError: the run was stopped before any particle had finished.
    """
    eligible = eligible_of(system, system.population)
    for answer in system.features.answer:
        if (chosen := answer(system)) is not None:
            return chosen, next((i for i, particle in enumerate(system.everyone) if particle is chosen), ARCHIVED)
    everyone, pick, archived = system.everyone, system.pick, system.archive
    if not np.isfinite(eligible.log_weights).any():
        raise AllWeightsZero(len(everyone), "the end of the run")
    if pick == "value" and not np.isfinite(eligible.values).any():
        system.note("no particle's final value is known: the answer was selected by weight")
    index = select_index(system.rng, eligible, pick)
    winner = everyone[index]
    if pick == "return" and archived is not None and archived.return_ > winner.return_:
        return archived, ARCHIVED
    return winner, index


def eligible_of(system: ParticleSystem, population: Population) -> Population:
    """Return the population with weight 0 for particles that cannot be picked."""
    asked = [candidates(system) for candidates in system.features.candidates]
    allowed = np.array([_may_be_picked(system, particle) for particle in system.everyone])
    if system.stop is not None and not any(particle.succeeded for particle in system.everyone):
        raise PopulationError(
            f"the run was stopped ({quoted(system.stop.reason)}) before any particle had finished, so it has no answer"
        )
    out = ~functools.reduce(np.logical_and, (mask for mask in asked if mask is not None), allowed)
    return replace(
        population,
        log_weights=np.where(out, -np.inf, population.log_weights),
        values=np.where(out, np.nan, population.values),
    )


def _may_be_picked(system: ParticleSystem, particle: Particle) -> bool:
    if particle.lost:  # Also since the last weighing.
        return False
    return particle.finished or not (particle.held or system.stop is not None)


def select_index(rng: np.random.Generator, population: Population, select: Select) -> int:
    """Return the index of the selected particle; failed particles are never selected.

    A value is NaN if the critic failed under `on_critic_error="uniform"`. "value" selects among the particles with a
    known value. If no value is known, it selects by weight, which contains the critic's earlier values.

    Args:
        rng: random generator for "sample".
        population: at least one particle has a positive weight.
        select: as in `amc`.
    """
    alive = np.isfinite(population.log_weights)
    known = alive & np.isfinite(population.values)
    if select == "sample":
        return int(rng.choice(len(alive), p=smc.normalised(population.log_weights)))
    if select == "return":
        scores = np.array([trajectory.return_ for trajectory in population.trajectories])
    elif select in ("shortest", "longest"):
        lengths = np.array([trajectory.length for trajectory in population.trajectories])
        scores = lengths if select == "longest" else -lengths
    elif select == "vote":
        answers = [trajectory.answer for trajectory in population.trajectories]
        voters = Counter(answer for answer, votes in zip(answers, alive, strict=True) if votes)
        scores = np.array([voters[answer] for answer in answers], dtype=np.float64)
    elif select == "value" and known.any():
        alive, scores = known, population.values
    else:
        # Absolute weights: those since the last resampling cover other steps for retired particles.
        scores = population.log_weights
    return int(np.argmax(np.where(alive, scores, -np.inf)))


def run_of(system: ParticleSystem, winner: Particle, index: int) -> Run:
    """Return the run whose answer is a particle."""
    outlet, stopped = system.outlet, system.stop
    return Run(
        best=system.runner.trajectory_of(winner),
        best_index=index,
        population=system.population,
        history=tuple(system.history),
        log_evidence=system.log_evidence,
        usage=outlet.meter.read(),
        seed=outlet.seed,
        config=system.settings.as_plain(),
        select=system.settings.pick,
        deployable=not system.settings.rewards_observed,
        beta=system.target.beta,
        outputs=tuple(particle.state for particle in system.everyone),
        best_output=winner.state,
        stopped_by=None if stopped is None else stopped.reason,
        usage_by_model=outlet.meter.by_model(),
        deferred=DeferredCalls(
            Commit(call.name, dict(call.args), call.call_id, None, "not run") for call in winner.door.deferred
        ),
    )


def log_end(run: Run, run_id: str) -> None:
    """Log that a run has its result."""
    log(_log, logging.INFO, "run.ended", "run %(run)s ended after %(best_steps)d steps with the return %(best_return)g",
        run=run_id, **facts_of(run))  # fmt: skip


def facts_of(run: Run) -> dict[str, Any]:
    """Return what the log and a run's span tell about its result."""
    return {
        "best_index": run.best_index,
        "best_return": run.best.return_,
        "best_steps": len(run.best.steps),
        "n_particles": len(run.population.trajectories) - sum(len(point.retired) for point in run.history),
        "n_failed": sum(run.population.failed),
        "n_resamplings": sum(point.ancestors is not None for point in run.history),
        "log_evidence": run.log_evidence,
        "critic": run.config.get("critic"),
        "select": run.select,
        "stopped_by": run.stopped_by,
        "seed": run.seed,
        "n_notes": len(run.notes),
        **{
            f"usage.{role}.{name}": count
            for role, usage in run.usage.items()
            for name, count in usage.as_plain().items()
        },
    }


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
