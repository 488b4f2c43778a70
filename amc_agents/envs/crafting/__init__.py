"""A TextCraft-compatible crafting world with recipe books, a task generator and a planner."""

from amc_agents.envs.crafting.official import load_recipes, official_tasks
from amc_agents.envs.crafting.tasks import Move, generate_task, generate_tasks, next_move, plan
from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld, Recipe, RecipeBook

__all__ = [
    "CraftingTask",
    "CraftingWorld",
    "Move",
    "Recipe",
    "RecipeBook",
    "generate_task",
    "generate_tasks",
    "load_recipes",
    "next_move",
    "official_tasks",
    "plan",
]
