"""The files of `amc new`: an agent that runs at once, tasks, and a test; to be replaced part by part."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file, storage_errors
from amc_agents.quoting import quoted

PARTS = {"flight": 90, "hotel": 80, "tour": 40, "dinner": 30, "museum": 20}
"""Part of a trip -> its usual price in good quality."""
TOWNS = ("Oslo", "Lisbon", "Rome", "Vienna", "Prague", "Athens", "Dublin", "Riga", "Turin", "Porto")
_ROOM = (0.2, 0.35)
"""The budget, between the cheapest trip (0) and the best (1)."""


def write_skeleton(folder: Path, n_tasks: int) -> list[Path]:
    """Write an agent's module, its tasks and a test into a new or empty folder.

    Args:
        folder: the folder; its name gives the module's.
        n_tasks: number of tasks; every second one is a test task.

    Returns:
        The files: module, tasks, test.

    Raises:
        ConfigurationError: the folder is not empty, or its name cannot be a module's.
        StorageError: a file cannot be written.
    """
    module = module_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not empty: choose another folder")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tasks = "".join(json.dumps(line) + "\n" for line in trips(n_tasks))
    written = {
        f"{module}.py": _template("agent.py.txt"),
        "tasks.jsonl": tasks,
        f"test_{module}.py": _template("test_agent.py.txt").replace("{module}", module),
    }
    for name, text in written.items():
        replace_file(folder / name, text)
    return [folder / name for name in written]


def module_name(folder: Path) -> str:
    """Return the module's name for a folder: my-agent -> my_agent.

    Raises:
        ConfigurationError: it would not be a name.
    """
    name = re.sub(r"[^0-9a-z]+", "_", folder.name.lower()).strip("_")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigurationError(
            f"{quoted(folder.name)} gives no module name: use letters, digits and -, beginning with a letter, as in "
            "my-agent"
        )
    return name


def trips(n_tasks: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of tasks: trips with their own prices and budgets, alternately for training and test."""
    for number in range(n_tasks):
        rng = np.random.default_rng([number, 7])
        prices = {part: _prices(rng, usual) for part, usual in PARTS.items()}
        cheapest, best = (sum(price[quality] for price in prices.values()) for quality in (0, 2))
        budget = 10 * round((cheapest + rng.uniform(*_ROOM) * (best - cheapest)) / 10)
        listed = "; ".join(f"{part} {' / '.join(map(str, price))}" for part, price in prices.items())
        town = TOWNS[number % len(TOWNS)]
        yield {
            "id": f"trip-{number}",
            "split": "test" if number % 2 else "train",
            "instruction": f"Plan a trip to {town} with a budget of {budget}: reserve every part once, then pay. "
            f"Prices (cheap / good / best): {listed}.",
            "prices": prices,
            "budget": budget,
        }


def _prices(rng: np.random.Generator, usual: int) -> list[int]:
    good = max(20, 10 * round(usual * rng.uniform(0.7, 1.3) / 10))
    return [good - 10 * int(rng.integers(1, max(2, good // 20 + 1))), good, good + 10 * int(rng.integers(1, 6))]


def _template(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
