"""AMC: sequential Monte Carlo over N trajectories of any LangGraph agent (paper: AMC).

The equations are in `amc_agents.smc`. The files in reading order:

| file | content |
|---|---|
| `settings` | settings of a run, resolved from arguments, configuration file and defaults |
| `graph` | `amc`: check the arguments, build the outer graph |
| `amc_graph` | the compiled graph, with `run`, `arun` and the streams |
| `nodes` | the nodes: init, propagate, weigh, resample, finalize |
| `wrapped_agent` | the checked arguments |
| `start`, `origin` | init: connect the critic, create the worlds and the particles |
| `population` | the particles and their weights |
| `propagation`, `weighing`, `resampling` | propagate, weigh and resample them (Algorithm 1) |
| `early_end` | ends of a run before all particles have ended |
| `valuation` | the critic's values, as potentials |
| `conclusion` | finalize: the answer, and the `Run` |
| `selection` | the choice of the answer |
| `search_notes`, `twins` | notes on runs whose search could not help |
| `particle` | the state of one particle |
| `particle_runner`, `agent_streams` | step, fork and stop particles |
| `rewards` | the source of rewards, and the reward of a step |
| `time_limits` | time limits of a run and of its parts |
| `particle_trace`, `particle_events` | a particle's runs in traces, and the events that its agent writes |
| `saver`, `containers` | checkpoints in memory, copied by reference when a particle forks |
| `store` | each particle's view of the agent's store |
| `durable` | points from which a population goes on after a crash |
| `open_run`, `streamed_run` | closing a run's worlds in every case; a run in a stream |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.population.amc_graph import AmcGraph
    from amc_agents.population.graph import amc
    from amc_agents.settings import AmcSettings

__all__ = [
    "AmcGraph",
    "AmcSettings",
    "amc",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "AmcGraph": "population.amc_graph",
        "AmcSettings": "settings",
        "amc": "population.graph",
    },
)
