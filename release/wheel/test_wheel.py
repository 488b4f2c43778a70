"""The installed wheel as a user meets it: its files, its command and the examples, with no checkout around."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import amc_agents

HERE = Path(__file__).resolve().parent
EXAMPLES = {
    "actor_critic.py": "Crafted",
    "ask_a_human.py": "",
    "compose_nodes.py": "steps made",
    "critique_refine.py": "",
    "posterior_sampling.py": "pulled:",
    "swap_critic.py": "",
    "wrap_agent_with_tools.py": "best return 1,",
}
IMPORT_ALL = """
import importlib, pkgutil, amc_agents
from amc_agents.errors import MissingExtra
for module in pkgutil.walk_packages(amc_agents.__path__, "amc_agents."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except MissingExtra:
            pass
        except ModuleNotFoundError as error:
            if not module.name.startswith("amc_agents.cli.") or error.name.split(".")[0] not in ("typer", "rich"):
                raise
        print(module.name)
"""


def python(*arguments: str) -> str:
    """Run this interpreter in this folder, which holds no checkout, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=HERE, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_package_is_the_installed_one() -> None:
    assert Path(amc_agents.__file__).is_relative_to(sys.prefix)


def test_the_version_is_that_of_the_metadata() -> None:
    assert metadata("amc-agents")["Version"] == amc_agents.__version__


def test_every_module_imports_or_names_its_extra() -> None:
    assert len(python("-c", IMPORT_ALL).split()) > 200


def test_the_command_starts_or_names_its_extra() -> None:
    command = [str(Path(sys.executable).with_name("amc")), "--help"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    if find_spec("typer"):
        assert "demo" in done.stdout
    else:
        assert done.returncode
        assert "amc-agents[cli]" in done.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    assert EXAMPLES[name] in python(str(HERE.parent / "examples" / name))
