"""An oracle critic that knows exactly how many steps can still be wasted.

    python reproduce/study/slack.py DATA

The world's planner gives the steps to the goal; slack = steps left - steps needed. The success rate at each (steps
left, slack) is counted on DATA, the training trajectories of the value model, and written to
reproduce/study/models/slack.json. AMC's gain with an oracle depends on the settings: small at settings tuned for a weak
critic, large at its own settings (room.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np

from amc_agents.bench.planner_critic import PlannerCritic
from amc_agents.training.dataset import read_trajectories
from amc_agents.types import FloatArray, Trajectory
from reproduce.study.settings import MODELS

HORIZON = 20
LOG_WEIGHT = 1.5
"""Log-weight per step of slack (`LinearSlackCritic`, at beta 1)."""
FILE = MODELS / "slack.json"


class SlackCritic:
    """A critic of the whole return, with values from `FILE`."""

    predicts = "return"

    def __init__(self) -> None:
        self._planner = PlannerCritic()
        self._table = {
            tuple(map(int, key.split())): value for key, value in json.loads(FILE.read_text(encoding="utf-8")).items()
        }

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` success rate at the state's slack, or at the next smaller slack if that was never observed."""
        return np.array([await self._value(trajectory) for trajectory in trajectories], dtype=np.float64)

    async def _value(self, trajectory: Trajectory) -> float:
        if trajectory.done:
            return float(trajectory.return_ > 0)
        left, slack = await place(self._planner, trajectory)
        return next((self._table[left, less] for less in range(slack, -1, -1) if (left, less) in self._table), 0.0)


class LinearSlackCritic:
    """A critic with log-weights for beta 1: `LOG_WEIGHT` per step of slack. The values are not probabilities."""

    predicts = "return"

    def __init__(self) -> None:
        self._planner = PlannerCritic()

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` log-weights; the return if a trajectory is done."""
        return np.array([await self._value(trajectory) for trajectory in trajectories], dtype=np.float64)

    async def _value(self, trajectory: Trajectory) -> float:
        if trajectory.done:
            return trajectory.return_
        _, slack = await place(self._planner, trajectory)
        return LOG_WEIGHT * slack


async def place(planner: PlannerCritic, trajectory: Trajectory) -> tuple[int, int]:
    """Return the steps left, and how many of them can be wasted."""
    task, wasted = planner.task(trajectory), await planner.wasted(trajectory)
    return HORIZON - len(trajectory.steps), HORIZON - task.optimal_steps - wasted


async def counted(played: Sequence[Trajectory]) -> dict[str, float]:
    """Count the success rate over all states of the trajectories: "left slack" -> rate."""
    planner, visits, successes = PlannerCritic(), Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for trajectory in played:
        for t in range(len(trajectory.steps)):
            key = await place(planner, trajectory.prefix(t))
            visits[key] += 1
            successes[key] += trajectory.return_ > 0
    return {f"{left} {slack}": round(successes[left, slack] / n, 4) for (left, slack), n in sorted(visits.items())}


def main() -> None:
    """Count, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    table = asyncio.run(counted(read_trajectories(parser.parse_args().data)))
    FILE.write_text(json.dumps(table, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
