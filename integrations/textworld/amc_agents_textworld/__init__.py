"""TextWorld for amc-agents: text games generated on the spot, with forks and an expert."""

from amc_agents_textworld.games import GAMES_VARIABLE, GameSize, games_folder, generated_game
from amc_agents_textworld.tasks import MODEL, SPLITS, TEXTWORLD, generate_tasks, story_task
from amc_agents_textworld.world import HORIZON, TextWorldTask, TextWorldWorld

__all__ = [
    "GAMES_VARIABLE",
    "HORIZON",
    "MODEL",
    "SPLITS",
    "TEXTWORLD",
    "GameSize",
    "TextWorldTask",
    "TextWorldWorld",
    "games_folder",
    "generate_tasks",
    "generated_game",
    "story_task",
]
