"""How much a better critic could gain: an oracle, at the study's settings and at settings of its own.

Tasks of the hardest band that nothing was trained, tuned or tested on. Independent trajectories of the same tasks give
Best-of-N for every N up to 60.
"""

from __future__ import annotations

from dataclasses import replace

from ablations import BAND, PLANNER
from amc_agents.bench import methods
from amc_agents.bench.methods import Method
from amc_agents.smc import EveryStep
from settings import TUNED, TrainingShard, chosen_of

FIRST_TASK, TASKS_OF_A_SHARD, N_SHARDS = 900_000, 40, 6
POOL = 60
POOL_NAME, AT_STUDYS_SETTINGS, AT_ITS_OWN = "pool-60", "oracle", "oracle-every-step"
LINEAR_SLACK = "slack:LinearSlackCritic"


def room_methods() -> tuple[Method, ...]:
    """A pool, and the oracle at two settings."""
    chosen = chosen_of(BAND, TUNED)
    best, amc = chosen[methods.BEST_OF_N], methods.amc(chosen[methods.AMC])
    return (
        replace(methods.best_of_n(best), name=POOL_NAME, critic="uniform", n_particles=POOL),
        replace(amc, name=AT_STUDYS_SETTINGS, critic=PLANNER),
        replace(amc, name=AT_ITS_OWN, critic=LINEAR_SLACK, temperature=0.8, resample=EveryStep(), beta=1.0),
    )


ROOMS = tuple(
    TrainingShard(f"room-{part}", room_methods, FIRST_TASK + part * TASKS_OF_A_SHARD, TASKS_OF_A_SHARD)
    for part in range(N_SHARDS)
)
