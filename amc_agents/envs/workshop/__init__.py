"""The workshop: crafting with finite stock, hidden success, or both, with a task generator and an exact planner."""

from amc_agents.envs.workshop.generate import Kind, generate_task, generate_tasks
from amc_agents.envs.workshop.instruction import instruction, parse_instruction
from amc_agents.envs.workshop.planner import Solution, solution, solution_from
from amc_agents.envs.workshop.world import WorkshopTask, WorkshopWorld

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
