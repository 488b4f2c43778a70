"""`amc bench` and `amc demo` with the shipped models, for fixed seeds on two tasks: name -> the record's function."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VARIES = {"seconds", "command", "policy_cached_tokens", "critic_cached_tokens", "world_model_cached_tokens"}
"""Fields that depend on the time, the folder, or the order in which requests reach a cache."""
SIZE = ("--tasks", "2", "--particles", "3", "--workers", "1")
METHODS = "react,best-of-n,amc,lac"


def amc_command(*arguments: str) -> str:
    """Run `amc` in a process of its own and return its output."""
    command = [sys.executable, "-c", "from amc_agents.cli import main; main()", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def settled(value: Any) -> Any:
    """Remove what varies."""
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items() if key not in VARIES}
    if isinstance(value, list):
        return [settled(each) for each in value]
    return value


def demo() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        said = amc_command("demo", *SIZE, "--json", "--out", f"{folder}/demo")
    return by_method(json.loads(said))


def bench() -> dict[str, Any]:
    """The comparison, and the record of every run."""
    with TemporaryDirectory() as folder:
        said = amc_command("bench", *SIZE, "--seeds", "2", "--methods", METHODS, "--json", "--out", f"{folder}/bench")
        lines = Path(folder, "bench", "records.jsonl").read_text().splitlines()
    runs = sorted((json.loads(line) for line in lines), key=lambda run: (run["method"], run["task"], run["seed"]))
    return {**by_method(json.loads(said)), "runs": settled(runs)}


def by_method(result: Any) -> dict[str, Any]:
    """The result with a part for each method."""
    parts = {f"method {each['name']}": each for each in result.pop("methods")}
    result["comparisons"] = [each for each in result["comparisons"] if each["metric"] == "oracle"]
    return settled({**parts, **result})


COMPARISONS: dict[str, Callable[[], dict[str, Any]]] = {"bench": bench, "demo": demo}
