"""A small story file, and the tools that other games need."""

import shutil
from pathlib import Path

from amc_agents_jericho import JerichoWorld
from amc_agents_jericho.keep.compile import LIBRARY

STORY = Path(__file__).with_name("version3.z3")
"""Compiled from version3.inf: `inform6 -v3 version3.inf version3.z3`."""
NO_INFORM = (
    ""
    if shutil.which("inform6") and LIBRARY.is_dir()
    else "these games are compiled by Debian's inform6-compiler and inform6-library, which are not installed"
)
"""Why games cannot be compiled; empty: they can."""


async def played(task, *actions):
    world = JerichoWorld()
    await world.reset(task)
    answers = [await world.step(action) for action in actions]
    await world.close()
    return answers
