"""The command line and the bench without the packages of their extras, and what imports them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from amc_agents.cli.compare import bench
from amc_agents.cli.tune import tune
from amc_agents.errors import MissingExtra
from amc_agents.lac.types import LacSettings
from amc_agents.settings import AmcSettings

BLOCK = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv = {argv!r}
"""
MAIN = "from amc_agents.cli import main; main()"


def python(code, repository, cwd):
    environment = {**os.environ, "PYTHONPATH": str(repository), "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_line_names_its_missing_extra(repository, tmp_path, package):
    code = BLOCK.format(blocked={package}, argv=["amc", "--help"]) + MAIN
    done = python(code, repository, tmp_path)
    expected = f"amc: {MissingExtra(package, 'cli')}\n"
    assert "pip install 'amc-agents[cli]'" in expected
    assert (done.returncode, done.stderr) == (2, expected)


def test_a_missing_package_of_another_kind_is_no_missing_extra(repository, tmp_path):
    done = python(BLOCK.format(blocked={"filelock"}, argv=["amc", "--help"]) + MAIN, repository, tmp_path)
    assert done.returncode == 1
    assert "No module named 'filelock'" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["bench", "demo"])
def test_a_comparison_names_matplotlibs_extra_before_it_runs_anything(repository, tmp_path, command):
    code = BLOCK.format(blocked={"matplotlib"}, argv=["amc", command, "--out", "out"]) + MAIN
    done = python(code, repository, tmp_path)
    expected = f"amc: {MissingExtra('matplotlib', 'bench')}\n"
    assert "pip install 'amc-agents[bench]'" in expected
    assert (done.returncode, done.stderr) == (2, expected)
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_runs_and_reports_import_neither_pictures_nor_terminal(repository, tmp_path):
    code = BLOCK.format(blocked={"matplotlib", "typer"}, argv=[]) + (
        "import amc_agents\n"
        "import amc_agents.bench.runner, amc_agents.bench.tuning, amc_agents.bench.report_tables\n"
        "import amc_agents.bench.selection\n"
    )
    assert python(code, repository, tmp_path).stderr == ""


def test_no_module_outside_the_command_line_names_rich_or_typer(repository):
    rooms = ("bench", "population", "runtime", "lac", "smc")
    files = [file for room in rooms for file in (repository / "amc_agents" / room).rglob("*.py")]
    assert len(files) > 40
    imports = ("import rich", "from rich", "import typer", "from typer")
    assert [str(file) for file in files if any(line in file.read_text() for line in imports)] == []


def test_defaults_of_the_command_line_are_those_of_the_settings():
    # Written out there, because `amc --help` must not import numpy.
    defaults = {command: inspect.signature(command).parameters for command in (bench, tune)}
    for command in (bench, tune):
        assert int(defaults[command]["particles"].default) == AmcSettings.n_particles
    assert defaults[bench]["candidates"].default == LacSettings.k
