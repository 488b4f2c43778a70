"""Weigh and resample a population as parts of its traced run."""

from __future__ import annotations

import logging
from typing import Any

from amc_agents.logs import log, room_logger
from amc_agents.population.resampling import resample
from amc_agents.population.system import ParticleSystem
from amc_agents.population.weighing import weigh
from amc_agents.run import Run

_log = room_logger(__name__)


async def traced_weigh(system: ParticleSystem) -> None:
    """Weigh the particles, and record the critic's values."""
    before = len(system.history)
    critic = system.settings.critic
    with system.span.work("amc.weigh", "EVALUATOR", step=system.step, critic=critic) as span:
        await weigh(system)
        if len(system.history) == before:  # A limit ended the run.
            return
        point = system.history[-1]
        span.note(values=point.values.tolist(), log_weights=point.log_weights.tolist(), ess=point.ess)
        span.note(due=system.due)
    values = point.values.tolist()
    log(_log, logging.DEBUG, "particles.weighed", "run %(run)s was weighed at step %(step)d: ESS %(ess).3g",
        run=system.runner.streams.run_id, step=point.step, ess=point.ess)  # fmt: skip
    system.span.valued(critic, point.step, [particle.span for particle in system.particles], values)
    for particle, value in zip(system.particles, values, strict=True):
        if particle.trace is not None:
            particle.trace.tell(value)


async def traced_resample(system: ParticleSystem) -> None:
    """Resample the particles, and record the ancestors."""
    with system.span.work("amc.resample", step=system.step) as span:
        await resample(system)
        point = system.history[-1]
        if point.ancestors is not None:
            ancestors = point.ancestors.tolist()
            span.note(ancestors=ancestors, retired=list(point.retired))
            log(_log, logging.DEBUG, "particles.resampled", "run %(run)s was resampled at step %(step)d: %(ancestors)s",
                run=system.runner.streams.run_id, step=point.step, ancestors=ancestors)  # fmt: skip


def log_end(run: Run, run_id: str) -> None:
    """Log that a run has its result."""
    log(_log, logging.INFO, "run.ended", "run %(run)s ended after %(best_steps)d steps with the return %(best_return)g",
        run=run_id, **facts_of(run))  # fmt: skip


def facts_of(run: Run) -> dict[str, Any]:
    """Return what a run's span tells about its result."""
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
