"""The commands of the coding world as tools, for agents that call tools."""

from __future__ import annotations

from langchain_core.tools import tool

from amc_agents import current_environment, effect


@tool
@effect("world")
async def read_file(path: str) -> str:
    """Read a file; every line comes with its number."""
    return (await current_environment().step(f"read {path}")).observation


@tool
@effect("world")
async def edit_file(path: str, first_line: int, last_line: int, new_text: str) -> str:
    """Replace the lines from first_line to last_line of a file by new_text."""
    return (await current_environment().step(f"edit {path} {first_line}-{last_line}\n{new_text}")).observation


@tool
@effect("world")
async def run_tests() -> str:
    """Run the tests and report which of them fail."""
    return (await current_environment().step("test")).observation


TOOLS = (read_file, edit_file, run_tests)
"""All tools of the coding world."""
