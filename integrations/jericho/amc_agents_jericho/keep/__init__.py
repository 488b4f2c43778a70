"""Generated games in Inform 6: find the sword and the key, defeat the goblin, and bring the crown home."""

from amc_agents_jericho.keep.compile import compile_game
from amc_agents_jericho.keep.expert import KeepExpert
from amc_agents_jericho.keep.layout import MAX_SCORE, Layout, generate_layout

__all__ = ["MAX_SCORE", "KeepExpert", "Layout", "compile_game", "generate_layout"]
