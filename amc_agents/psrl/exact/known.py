"""Which exact model goes with which world."""

from __future__ import annotations

from typing import Any

from amc_agents.envs.exploration import BernoulliBandit, HiddenSequence, InformativeBandit, RiverSwim
from amc_agents.errors import ConfigurationError
from amc_agents.psrl.exact.bandits import BestArm, BetaBernoulli
from amc_agents.psrl.exact.model import ExactModel
from amc_agents.psrl.exact.river import TabularRiver
from amc_agents.psrl.exact.sequences import ConsistentSequences
from amc_agents.types import Task


def exact_model(task: Task) -> ExactModel[Any]:
    """The model of the world that a task belongs to.

    Raises:
        ConfigurationError: its world has none.
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
        f"task {task.id!r} is of a world without an exact model; bandits, hidden sequences and rivers of "
        "amc_agents.envs.exploration have one"
    )
