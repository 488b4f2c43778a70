"""The gain of a perfect critic: an oracle at the study's settings and at its own settings.

The tasks are of the hardest band; no training, tuning or test used them. Independent trajectories of these tasks give
Best-of-N for every N up to 60.
"""

from __future__ import annotations

from dataclasses import replace

from amc_agents.bench import methods
from amc_agents.bench.methods import Method
from amc_agents.smc import EveryStep
from reproduce.study.ablations import BAND, PLANNER
from reproduce.study.settings import TUNED, TrainingShard, chosen_of

FIRST_TASK, TASKS_OF_A_SHARD, N_SHARDS = 900_000, 40, 6
POOL = 60
POOL_NAME, AT_STUDYS_SETTINGS, AT_ITS_OWN = "pool-60", "oracle", "oracle-every-step"
LINEAR_SLACK = "reproduce.study.slack:LinearSlackCritic"


def room_methods() -> tuple[Method, ...]:
    """List a pool, and the oracle at two settings."""
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
