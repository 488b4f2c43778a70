"""The workshop: crafting with finite stock, hidden success, or both, with a task generator and an exact planner."""

from amc_agents.envs.workshop.tasks import Kind, generate_task, generate_tasks, instruction, parse_instruction
from amc_agents.envs.workshop.world import Solution, WorkshopTask, WorkshopWorld, solution, solution_from

__all__ = [
    "Kind",
    "Solution",
    "WorkshopTask",
    "WorkshopWorld",
    "generate_task",
    "generate_tasks",
    "instruction",
    "parse_instruction",
    "solution",
    "solution_from",
]
