"""Sequential Monte Carlo on numpy arrays, as pure functions with the random generator as an argument.

| file | content |
|---|---|
| `potentials` | from returns and values to potentials (eq. 5, 6), and a beta where none is given |
| `filter` | weigh, resample, log evidence (eq. 4, Algorithm 1) |
| `schedule` | when to resample |
| `resampling` | from log-weights to ancestors |
| `adaptive` | how many particles, and when to stop |
| `weights` | effective sample size, and sums in log space |
| `genealogy` | lineages of particles |
"""

from __future__ import annotations

from amc_agents.smc.adaptive import Adaptive, overtaking_by_agreement, overtaking_by_value
from amc_agents.smc.filter import (
    FilterState,
    FinishedMode,
    ResamplingInfo,
    begin_again,
    init,
    log_evidence,
    resample,
    restart,
    weigh,
)
from amc_agents.smc.genealogy import Genealogy
from amc_agents.smc.potentials import halving_beta, potentials
from amc_agents.smc.resampling import (
    SCHEMES,
    Scheme,
    keep_in_place,
    multinomial,
    residual,
    resolve_scheme,
    stratified,
    systematic,
)
from amc_agents.smc.schedule import AtSteps, EssBelow, EveryStep, Never, Schedule
from amc_agents.smc.weights import ess, log_mean_exp, log_sum_exp, normalised

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
