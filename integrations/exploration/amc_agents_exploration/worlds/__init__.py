"""Worlds with hidden instances to explore over several episodes, with exact optimal values."""

from amc_agents_exploration.worlds.bandit import BernoulliBandit, bandit_task, read_pull
from amc_agents_exploration.worlds.hidden_sequence import (
    FEEDBACKS,
    Entered,
    Feedback,
    HiddenSequence,
    feedback_on,
    read_entered,
)
from amc_agents_exploration.worlds.informative_bandit import (
    InformativeBandit,
    informative_bandit_task,
    payment,
    read_payment,
)
from amc_agents_exploration.worlds.lock import CODES, CombinationLock, lock_task
from amc_agents_exploration.worlds.planning import Plan, plan
from amc_agents_exploration.worlds.riverswim import REWARDS, TUNNELS, RiverSwim, Swum, read_swum, riverswim_task
from amc_agents_exploration.worlds.wordle import Wordle, load_words, usable_words, wordle_task
from amc_agents_exploration.worlds.world import ExplorationWorld, Instance, episodes

__all__ = [
    "CODES",
    "FEEDBACKS",
    "REWARDS",
    "TUNNELS",
    "BernoulliBandit",
    "CombinationLock",
    "Entered",
    "ExplorationWorld",
    "Feedback",
    "HiddenSequence",
    "InformativeBandit",
    "Instance",
    "Plan",
    "RiverSwim",
    "Swum",
    "Wordle",
    "bandit_task",
    "episodes",
    "feedback_on",
    "informative_bandit_task",
    "load_words",
    "lock_task",
    "payment",
    "plan",
    "read_entered",
    "read_payment",
    "read_pull",
    "read_swum",
    "riverswim_task",
    "usable_words",
    "wordle_task",
]
