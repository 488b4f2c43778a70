"""AMC: sequential Monte Carlo over N trajectories of any LangGraph agent (paper: AMC).

The equations are in `amc_agents.smc`. The files in reading order:

| file | content |
|---|---|
| `settings` | settings of a run, from arguments, file and defaults; the checked arguments |
| `wrap` | `amc`: check the arguments, build the outer graph |
| `loop` | Algorithm 1: propagate, weigh, resample, conclude |
| `system`, `particle` | the particles, their weights and their moves; one particle and its past |
| `start` | connect the critic, create the worlds and the particles |
| `weighing` | the critic's values as potentials, and the choice of beta |
| `conclusion` | the answer, and the `Run` |
| `feature`, `features` | the seam: what a run does beside Algorithm 1 |
| `particle_runner`, `agent_streams` | step, fork and stop particles; the reward of a step |
| `saver` | checkpoints in memory, copied by reference when a particle forks |
| `nodes`, `graph` | the verbs as nodes of a LangGraph graph, with `run`, `arun` and the streams |
| `open_run` | closing a run's worlds in every case; a run in a stream |
| `estimate` | what a call costs, from a plain run |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.population.feature import Feature
    from amc_agents.population.graph import AmcGraph
    from amc_agents.population.wrap import amc
    from amc_agents.settings import AmcSettings

__all__ = [
    "AmcGraph",
    "AmcSettings",
    "Feature",
    "amc",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "AmcGraph": "population.graph",
        "AmcSettings": "settings",
        "Feature": "population.feature",
        "amc": "population.wrap",
    },
)
