"""Sequential Monte Carlo on numpy arrays, as pure functions with the random generator as an argument.

| file | content |
|---|---|
| `weights` | from returns and values to potentials (eq. 5, 6); effective sample size, and sums in log space |
| `filter` | weigh, resample, log evidence (eq. 4, Algorithm 1); lineages of particles |
| `resampling` | when to resample; from log-weights to ancestors |
| `adaptive` | how many particles, and when to stop |
"""

from __future__ import annotations

from amc_agents.smc.adaptive import Adaptive, overtaking_by_agreement, overtaking_by_value
from amc_agents.smc.filter import (
    FilterState,
    FinishedMode,
    Genealogy,
    ResamplingInfo,
    begin_again,
    init,
    log_evidence,
    resample,
    restart,
    weigh,
)
from amc_agents.smc.resampling import (
    SCHEMES,
    AtSteps,
    EssBelow,
    EveryStep,
    Never,
    Schedule,
    Scheme,
    keep_in_place,
    multinomial,
    residual,
    resolve_scheme,
    stratified,
    systematic,
)
from amc_agents.smc.weights import ess, halving_beta, log_mean_exp, log_sum_exp, normalised, potentials

__all__ = [
    "SCHEMES",
    "Adaptive",
    "AtSteps",
    "EssBelow",
    "EveryStep",
    "FilterState",
    "FinishedMode",
    "Genealogy",
    "Never",
    "ResamplingInfo",
    "Schedule",
    "Scheme",
    "begin_again",
    "ess",
    "halving_beta",
    "init",
    "keep_in_place",
    "log_evidence",
    "log_mean_exp",
    "log_sum_exp",
    "multinomial",
    "normalised",
    "overtaking_by_agreement",
    "overtaking_by_value",
    "potentials",
    "resample",
    "residual",
    "resolve_scheme",
    "restart",
    "stratified",
    "systematic",
    "weigh",
]
