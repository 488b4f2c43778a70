"""How much a better critic could gain: an oracle, at the study's settings and at settings of its own.

Tasks of the hardest band that nothing was trained, tuned or tested on. Independent trajectories of the same tasks give
Best-of-N for every N up to 60.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ablations import BAND, PLANNER
from amc_agents.bench import methods
from amc_agents.bench.methods import Method
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.smc import EveryStep
from settings import BANDS, SHIPPED, TUNED, chosen_of, policy_of

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


@dataclass(frozen=True)
class Room:
    """A part of the tasks, as one shard."""

    part: int

    @property
    def name(self) -> str:
        """Name of its folder and of its packed file."""
        return f"room-{self.part}"

    @property
    def plan(self) -> ComparisonPlan:
        """What it runs."""
        return ComparisonPlan(
            methods=room_methods(),
            n_tasks=TASKS_OF_A_SHARD,
            band=BANDS[BAND],
            split="train",
            first=FIRST_TASK + self.part * TASKS_OF_A_SHARD,
            critic="uniform",
            model=policy_of(SHIPPED),
            plain=True,
        )


ROOMS = tuple(map(Room, range(N_SHARDS)))
