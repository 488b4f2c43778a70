"""Z-machine games for amc-agents by Jericho: forks by state, reseeded luck, generated games with an expert."""

from amc_agents_jericho.keep import KeepExpert, Layout, compile_game, generate_layout
from amc_agents_jericho.story import Reply, Story
from amc_agents_jericho.tasks import JERICHO, KEEP, SPLITS, STORIES_VARIABLE, generate_tasks, story_task, story_tasks
from amc_agents_jericho.world import GameTask, JerichoWorld

__all__ = [
    "JERICHO",
    "KEEP",
    "SPLITS",
    "STORIES_VARIABLE",
    "GameTask",
    "JerichoWorld",
    "KeepExpert",
    "Layout",
    "Reply",
    "Story",
    "compile_game",
    "generate_layout",
    "generate_tasks",
    "story_task",
    "story_tasks",
]
