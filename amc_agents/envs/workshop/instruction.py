"""Write and parse the text of a workshop task, and explain the world to a chat model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace

from amc_agents.envs.crafting import tasks as crafting_tasks
from amc_agents.envs.crafting.tasks import RULES, parse_recipes
from amc_agents.envs.workshop.planner import solution
from amc_agents.envs.workshop.world import WorkshopTask
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task

_TEXT = re.compile(
    r"Crafting commands:\n(?P<recipes>.+?)(?:\n\nStock: (?P<stock>[^\n]+))?"
    r"\n\nGoal: craft (?P<goal>[^\n]+?)(?: without (?P<without>[^\n]+))?\.",
    re.DOTALL,
)
_COUNTED = re.compile(r"([0-9]{1,9}) (.+)")


STOCK = """\
The stock of each raw item is limited, and a crafting that no command describes destroys its ingredients. Plan ahead:
some mistakes cannot be undone."""
WITHOUT = """\
The goal names an item that you must not use in any crafting. The world does not say whether you obeyed."""


def rules_of(kind: str) -> str:
    """Explain the world of a kind ("stock", "hidden" or "both") to a chat model that was not trained for it."""
    return "\n".join([RULES, *([STOCK] if kind != "hidden" else []), *([WITHOUT] if kind != "stock" else [])])


def instruction(task: WorkshopTask) -> str:
    """Format the first observation of a task: recipes, stock, goal, and the item that must not be used."""
    stock = "" if task.stock is None else f"Stock: {_listed(task.stock)}\n\n"
    goal = task.goal if task.without is None else f"{task.goal} without {task.without}"
    recipes, _, last_line = crafting_tasks.instruction(task.book, goal).rpartition("\n")
    return f"{recipes}\n{stock}{last_line}"


def parse_instruction(text: str) -> Task:
    r"""Parse an instruction into the workshop task that it describes.

    Raises:
        ConfigurationError: the text has another format, or the task has no solution.

    >>> text = "Crafting commands:\ncraft 1 rod using 2 clay\n\nStock: 3 clay\n\nGoal: craft rod."
    >>> parse_instruction(text).payload.stock
    {'clay': 3}
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{_EXPECTED}, got {quoted(text)}")
    stock = None if match["stock"] is None else _stock(match["stock"])
    book = parse_recipes(match["recipes"])
    task = WorkshopTask(match["goal"], book, 0, book.depth(match["goal"]), stock, match["without"])
    best = solution(task)
    if best is None:
        raise ConfigurationError(
            f"the instruction's recipes and stock do not allow crafting {quoted(task.goal)} as required"
        )
    task_id = f"workshop/text/{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}"
    return Task(task_id, text, replace(task, optimal_steps=best.n_steps))


def _listed(stock: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {item}" for item, count in stock.items())


def _stock(text: str) -> dict[str, int]:
    stock: dict[str, int] = {}
    for part in text.split(", "):
        entry = _COUNTED.fullmatch(part)
        if entry is None:
            raise ConfigurationError(f"expected a stock such as 'Stock: 5 clay, 2 silk', got the entry {quoted(part)}")
        stock[entry[2]] = int(entry[1])
    return stock


_EXPECTED = (
    r"expected an instruction 'Crafting commands:\n<one recipe per line>\n\nStock: <count> <item>, ...\n\n"
    r"Goal: craft <item> without <item>.', stock and the forbidden item being optional"
)
"""What `parse_instruction` reads."""
