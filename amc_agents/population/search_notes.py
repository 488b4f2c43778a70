"""Notes on a run whose search could not help: what happened, and which setting to change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents import smc
from amc_agents.population.settings import Settings
from amc_agents.run import WeighingPoint
from amc_agents.smc import Never

EVEN = 0.95
"""Share of the particles above which the effective sample size says that their weights hardly differ."""


def reward_notes(returns: Sequence[float], settings: Settings) -> list[str]:
    """Say so where rewards were declared, and none came.

    Args:
        returns: of all particles.
        settings: of the run.
    """
    if not settings.rewards_observed or any(returns):
        return []
    return [
        "every return was 0, so that rewards told no particles apart: if the worlds give none at all, say "
        "rewards=False or let environment= give a Forkable; the run then goes by the critic's values alone"
    ]


def search_notes(history: Sequence[WeighingPoint], settings: Settings, *, stopped: bool) -> list[str]:
    """Say so where no weighing point told the particles apart. `Never()` does not search, so only its pick can fail.

    Args:
        history: all weighing points of the run; the last one is its end.
        settings: of the run.
        stopped: the run ended early, at `stop_at` or because its time was over.
    """
    if settings.n_particles == 1 or not history:
        return []
    *before, end = history
    notes = []
    if settings.resample != Never():
        if not before and not stopped:
            notes.append(
                f"the search did nothing: every particle ended before the first weighing point of {settings.resample}, "
                "so that the run was Best-of-N: weigh at earlier steps"
            )
        elif any(_answered(point) for point in before) and all(_evenness(point) > EVEN for point in before):
            notes.append(
                "the search did nothing: the effective sample size stayed above "
                f"{EVEN:.0%} of the particles at every weighing point, so that resampling could not tell them apart: "
                f"lower beta ({settings.beta:g}), weigh at other steps ({settings.resample}), or use a critic "
                f"that tells states apart ({settings.critic})"
            )
    if not settings.rewards_observed and _answered(end) and all(_evenness(point) > 1 - 1e-9 for point in history):
        notes.append(
            f"the pick is arbitrary: the critic ({settings.critic}) valued all particles alike, and the run saw no "
            "rewards: use a critic that tells finished trajectories apart, or give rewards"
        )
    return notes


def _answered(point: WeighingPoint) -> bool:
    """The critic did not fail there; where it did, the run has a note of that."""
    return not np.isnan(point.values[np.isfinite(point.log_weights)]).any()


def _evenness(point: WeighingPoint) -> float:
    """Effective sample size over the number of particles that have not failed, in (0, 1]."""
    alive = point.log_weights[np.isfinite(point.log_weights)]
    return float(smc.ess(alive)) / len(alive) if len(alive) else 1.0
