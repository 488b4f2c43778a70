"""TextArena's solo games as text worlds for amc-agents."""

from amc_agents_textarena.games import SPLITS, textarena_world
from amc_agents_textarena.luck import Luck
from amc_agents_textarena.world import TextArenaTask, TextArenaWorld

__all__ = ["SPLITS", "Luck", "TextArenaTask", "TextArenaWorld", "textarena_world"]
