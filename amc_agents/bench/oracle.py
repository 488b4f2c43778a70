"""What a critic that knows the world has to be told: which task a conversation is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amc_agents.critics.log_odds import LogOdds
from amc_agents.critics.uses import for_lac
from amc_agents.types import FloatArray, Task, Trajectory


def for_task(critic: Any, task: Task) -> LogOdds:
    """A critic that reads every trajectory as one of this task, payload included.

    Raises:
        ConfigurationError: it judges no actions.
    """
    return _OfTask(for_lac(critic), task)


class _OfTask:
    def __init__(self, critic: LogOdds, task: Task) -> None:
        self._critic, self._task = critic, task

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        return await self._critic.log_odds([replace(one, task=self._task) for one in trajectories])
