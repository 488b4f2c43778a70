"""ScienceWorld for amc-agents: deterministic worlds in one JVM, with verified forks, tasks and gold paths."""

from amc_agents_scienceworld.critic import Progress
from amc_agents_scienceworld.engine import SPLITS, TASK_NAMES, Engine, engine, variations
from amc_agents_scienceworld.gold import gold_path
from amc_agents_scienceworld.tasks import (
    SCIENCEWORLD,
    SCIENCEWORLD_LONG,
    SCIENCEWORLD_SHORT,
    SHORT_TASKS,
    generate_tasks,
    task_of,
)
from amc_agents_scienceworld.world import HORIZON, LONG_HORIZON, ScienceWorld, ScienceWorldTask

__all__ = [
    "HORIZON",
    "LONG_HORIZON",
    "SCIENCEWORLD",
    "SCIENCEWORLD_LONG",
    "SCIENCEWORLD_SHORT",
    "SHORT_TASKS",
    "SPLITS",
    "TASK_NAMES",
    "Engine",
    "Progress",
    "ScienceWorld",
    "ScienceWorldTask",
    "engine",
    "generate_tasks",
    "gold_path",
    "task_of",
    "variations",
]
