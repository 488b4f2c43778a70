"""A package adds a command, a kind of critic and a world by its entry points, without a change of the core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SETTINGS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "harbour"
version = "1.0"

[project.entry-points."amc_agents.commands"]
sail = "harbour:sail"
sink = "harbour:no_such_command"
doctor = "harbour:sail"

[project.entry-points."amc_agents.critics"]
pilot = "harbour:pilot"

[project.entry-points."amc_agents.worlds"]
harbour = "harbour:WORLD"
"""
MODULE = """
from amc_agents.critics.spec import parse_critic
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.envs.registry import WorldSpec


def tasks(n_tasks, split, first):
    return generate_tasks(n_tasks, split, first_seed=first)


WORLD = WorldSpec(CraftingWorld, tasks, 3, "crafting")


def pilot(target, options):
    return parse_critic("uniform")


def sail(harbour: str, days: int = 1) -> None:
    \"\"\"Sail to a harbour.

    It takes a while.
    \"\"\"
    print(f"{harbour} in {days} days")
"""


@pytest.fixture(scope="module")
def amc(tmp_path_factory):
    """`amc` in a process of its own, beside an installed package: a function of its arguments."""
    folder, target = tmp_path_factory.mktemp("harbour"), tmp_path_factory.mktemp("installed")
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "harbour.py").write_text(MODULE)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, folder], check=True)
    path = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(*arguments):
        code = "from amc_agents.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": path}, cwd=folder,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return call


@pytest.mark.thorough
def test_its_command_is_in_the_help_and_runs(amc):
    lines = amc("--help").stdout.splitlines()
    assert "  sail       Sail to a harbour." in lines
    assert amc("sail", "Bergen", "--days", "3").stdout == "Bergen in 3 days\n"


@pytest.mark.thorough
def test_a_command_that_cannot_be_loaded_breaks_nothing_else(amc):
    assert "  sink       (cannot be loaded)" in amc("--help").stdout.splitlines()
    done = amc("sink", "--fast", "now")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "amc: the command 'sink' of 'harbour:no_such_command' cannot be loaded: AttributeError"
    )
    assert "Check packages" in amc("doctor", "--help").stdout, "a command of the library keeps its name"


@pytest.mark.thorough
def test_its_world_and_its_critic_are_found_by_their_names(amc, tmp_path):
    command = ["bench", "--world", "harbour", "--critic", "pilot:x", "--methods", "react"]
    done = amc(*command, "--tasks", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
