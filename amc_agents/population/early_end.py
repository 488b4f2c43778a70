"""End a run before all its particles have ended: `stop_at`, and adaptive runs that are decided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.population.system import ParticleSystem


def ends_now(system: ParticleSystem) -> bool:
    """Consider the particles that have ended, and return whether the run ends early."""
    archive_and_maybe_stop(system)
    if system.rule is not None and system.rule.decides_at_any_end:
        stop_if_decided(system)
    return system.stopped


def archive_and_maybe_stop(system: ParticleSystem) -> None:
    """Keep the finished particle with the best return, and stop the run if it reaches `stop_at`."""
    if not system.settings.rewards_observed:
        return
    for particle in system.particles:
        if (
            particle.finished
            and particle.error is None
            and (system.archive is None or particle.return_ > system.archive.return_)
        ):
            system.archive = particle
    best = system.archive.return_ if system.archive else -np.inf
    if system.settings.stop_at is not None and best >= system.settings.stop_at and not system.stopped:
        system.stop()
        system.notes.append(
            f"stopped at return {best:g} >= stop_at: the other particles are unfinished and log Z is not known"
        )


def stop_if_decided(system: ParticleSystem) -> None:
    """Stop an adaptive run whose answer another particle is unlikely to overtake."""
    running = sum(particle.running for particle in system.particles)
    if system.rule is None or system.cut_short or not running:
        return
    overtaking = system.standing().overtaking
    if system.rule.adaptive.decides(overtaking):
        system.decided = True
        system.stop()
        system.notes.append(
            f"stopped early: another particle would overtake the answer with probability at most {overtaking:.2g}; "
            f"{running} unfinished particles were cancelled and log Z is not known"
        )


def forget_values(system: ParticleSystem, moving: Sequence[bool]) -> None:
    """Replace the values of an earlier step, where the run ends without another weighing."""
    system.values[moving] = np.nan
    if system.decided:
        for slot, particle in enumerate(system.particles):
            if moving[slot] and particle.finished:
                system.values[slot] = particle.return_ if system.settings.rewards_observed else 0.0
