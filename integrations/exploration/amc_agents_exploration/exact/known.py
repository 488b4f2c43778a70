"""The exact model of each world."""

from __future__ import annotations

from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task
from amc_agents_exploration.exact.bandits import BestArm, BetaBernoulli
from amc_agents_exploration.exact.model import ExactModel
from amc_agents_exploration.exact.river import TabularRiver
from amc_agents_exploration.exact.sequences import ConsistentSequences
from amc_agents_exploration.worlds import BernoulliBandit, HiddenSequence, InformativeBandit, RiverSwim


def exact_model(task: Task) -> ExactModel[Any]:
    """Return the exact model of a task's world.

    Raises:
        ConfigurationError: the world has no exact model.
    """
    match task.payload:
        case BernoulliBandit():
            return BetaBernoulli()
        case InformativeBandit():
            return BestArm()
        case HiddenSequence():
            return ConsistentSequences()
        case RiverSwim():
            return TabularRiver()
    raise ConfigurationError(
        f"the world of task {quoted(task.id)} has no exact model; expected a bandit, a hidden sequence or a river of "
        "amc_agents_exploration.worlds"
    )
