"""Pass the task, with its payload, to an oracle critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amc_agents.critics.log_odds import LogOdds
from amc_agents.critics.uses import for_lac
from amc_agents.types import FloatArray, Task, Trajectory


def for_task(critic: Any, task: Task) -> LogOdds:
    """Wrap a critic so that it evaluates every trajectory as a trajectory of this task, payload included.

    Raises:
        ConfigurationError: the critic cannot judge actions.
    """
    return _TaskCritic(for_lac(critic), task)


class _TaskCritic:
    def __init__(self, critic: LogOdds, task: Task) -> None:
        self._critic, self._task = critic, task

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        return await self._critic.log_odds([replace(trajectory, task=self._task) for trajectory in trajectories])
