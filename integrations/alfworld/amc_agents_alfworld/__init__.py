"""ALFWorld for amc-agents: the official engine on generated rooms for all six task types, or on the real games."""

from amc_agents_alfworld.rooms import TASK_TYPES, Room, generate_room, problem
from amc_agents_alfworld.tasks import ALFWORLD, DATA_VARIABLE, MODEL, OFFICIAL, SPLITS, generate_tasks, official_tasks
from amc_agents_alfworld.world import HORIZON, AlfworldTask, AlfworldWorld, game_data

__all__ = [
    "ALFWORLD",
    "DATA_VARIABLE",
    "HORIZON",
    "MODEL",
    "OFFICIAL",
    "SPLITS",
    "TASK_TYPES",
    "AlfworldTask",
    "AlfworldWorld",
    "Room",
    "game_data",
    "generate_room",
    "generate_tasks",
    "official_tasks",
    "problem",
]
