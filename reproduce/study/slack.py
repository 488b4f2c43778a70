"""An oracle as critic: it knows exactly how many steps can still be wasted.

    python reproduce/study/slack.py DATA

It asks the world's planner how far the goal is. slack = steps left - steps needed; the probability of success at each
(steps left, slack) is counted on DATA, the play that the value model is trained on, and written to
reproduce/study/models/slack.json. What AMC gains with an oracle depends on the settings: little at those that were
tuned for a weak critic, much at settings of its own (room.py).
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
from settings import MODELS

HORIZON = 20
LOG_WEIGHT = 1.5
"""What a step of slack adds to a log-weight (`LinearSlackCritic`, at beta 1)."""
FILE = MODELS / "slack.json"


class SlackCritic:
    """Values from `FILE`: the whole return."""

    predicts = "return"

    def __init__(self) -> None:
        self._planner = PlannerCritic()
        self._table = {
            tuple(map(int, key.split())): value for key, value in json.loads(FILE.read_text(encoding="utf-8")).items()
        }

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` probability of success, as often as it was seen from there; where it never was, as at less slack."""
        return np.array([await self._value(one) for one in trajectories], dtype=np.float64)

    async def _value(self, trajectory: Trajectory) -> float:
        if trajectory.done:
            return float(trajectory.return_ > 0)
        left, slack = await place(self._planner, trajectory)
        return next((self._table[left, one] for one in range(slack, -1, -1) if (left, one) in self._table), 0.0)


class LinearSlackCritic:
    """The log-weight of a state at beta 1: `LOG_WEIGHT` for each step that can still be wasted. No probability."""

    predicts = "return"

    def __init__(self) -> None:
        self._planner = PlannerCritic()

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` log-weights; the return where a trajectory ended."""
        return np.array([await self._value(one) for one in trajectories], dtype=np.float64)

    async def _value(self, trajectory: Trajectory) -> float:
        if trajectory.done:
            return trajectory.return_
        _, slack = await place(self._planner, trajectory)
        return LOG_WEIGHT * slack


async def place(planner: PlannerCritic, trajectory: Trajectory) -> tuple[int, int]:
    """Steps left, and how many of them can be wasted."""
    task, wasted = planner.task(trajectory), await planner.wasted(trajectory)
    return HORIZON - len(trajectory.steps), HORIZON - task.optimal_steps - wasted


async def counted(played: Sequence[Trajectory]) -> dict[str, float]:
    """From "left slack" to the share of successes, of all states of the trajectories."""
    planner, seen, won = PlannerCritic(), Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for one in played:
        for t in range(len(one.steps)):
            key = await place(planner, one.prefix(t))
            seen[key] += 1
            won[key] += one.return_ > 0
    return {f"{left} {slack}": round(won[left, slack] / n, 4) for (left, slack), n in sorted(seen.items())}


def main() -> None:
    """Count, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    table = asyncio.run(counted(read_trajectories(parser.parse_args().data)))
    FILE.write_text(json.dumps(table, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
