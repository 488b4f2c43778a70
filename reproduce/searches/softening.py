"""Adaptive tempering that only softens: a critic's small differences are never amplified."""

from __future__ import annotations

import numpy as np

from amc_agents.smc import ess
from amc_agents.types import FloatArray


def softened(values: FloatArray, potentials: FloatArray, log_weights: FloatArray, beta: float, rho: float) -> float:
    """Return the smallest beta, at least `beta`, at which the effective sample size is rho N.

    If there is none, because the earlier weights are too uneven, return the beta with the largest sample size.

    Args:
        values: `[N]` in reward units.
        potentials: `[N]` phi at the last weighing.
        log_weights: `[N]` before this weighing.
        beta: of the target.
        rho: share of N, in (0, 1].
    """
    betas = beta * np.geomspace(1.0, 1000.0, 61)
    sizes = ess(log_weights + values / betas[:, None] - potentials)
    enough = np.flatnonzero(sizes >= rho * len(values) - 1e-9)
    return float(betas[enough[0]] if len(enough) else betas[np.argmax(sizes)])
