"""AMC: sequential Monte Carlo over N trajectories of any LangGraph agent (paper: AMC).

The equations are in `amc_agents.smc`. The files in reading order:

| file | content |
|---|---|
| `settings` | settings of a run, from arguments, file and defaults; the checked arguments |
| `wrap` | `amc`: check the arguments, build the outer graph |
| `graph` | the compiled graph, with `run`, `arun` and the streams |
| `nodes` | the nodes: init, propagate, weigh, resample, finalize |
| `start` | init: connect the critic, create the worlds and the particles |
| `system` | the particles and their weights |
| `propagation`, `weighing`, `resampling` | propagate, weigh and resample them (Algorithm 1) |
| `conclusion` | finalize: the answer, and the `Run` |
| `particle` | the state of one particle |
| `particle_runner`, `agent_streams` | step, fork and stop particles |
| `rewards` | the source of rewards, and the reward of a step |
| `saver` | checkpoints in memory, copied by reference when a particle forks |
| `open_run` | closing a run's worlds in every case; a run in a stream |
| `features` | what a run may do beside Algorithm 1 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.population.graph import AmcGraph
    from amc_agents.population.wrap import amc
    from amc_agents.settings import AmcSettings

__all__ = [
    "AmcGraph",
    "AmcSettings",
    "amc",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "AmcGraph": "population.graph",
        "AmcSettings": "settings",
        "amc": "population.wrap",
    },
)
