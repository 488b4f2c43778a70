"""BabyAI-Text worlds for amc-agents: MiniGrid's BabyAI levels in words."""

from amc_agents_minigrid.expert import Expert, Turn
from amc_agents_minigrid.levels import GO_TO_LOCAL, PICKUP_LOCAL, make_level
from amc_agents_minigrid.oracle import ExpertCritic, ExpertLabels, steps_left
from amc_agents_minigrid.tasks import GO_TO, MODEL, PICK_UP, SPLITS, generate_task, generate_tasks
from amc_agents_minigrid.view import Sighting, describe
from amc_agents_minigrid.world import ACTIONS, HORIZON, BabyAITask, BabyAIWorld, instruction

__all__ = [
    "ACTIONS",
    "GO_TO",
    "GO_TO_LOCAL",
    "HORIZON",
    "MODEL",
    "PICKUP_LOCAL",
    "PICK_UP",
    "SPLITS",
    "BabyAITask",
    "BabyAIWorld",
    "Expert",
    "ExpertCritic",
    "ExpertLabels",
    "Sighting",
    "Turn",
    "describe",
    "generate_task",
    "generate_tasks",
    "instruction",
    "make_level",
    "steps_left",
]
