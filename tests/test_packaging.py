"""What a user installs: light to import, complete as a wheel, free of pickles."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from safetensors.numpy import load_file

MEGABYTE = 1_000_000
BASE = {
    *("langgraph", "langchain", "pydantic", "numpy", "safetensors", "httpx"),
    *("huggingface-hub", "tenacity", "tokenizers", "filelock", "typing-extensions"),
}
EXTRAS_MODULES = (
    *("torch", "transformers", "peft", "pyarrow", "accelerate", "vllm", "genai_prices"),
    *("typer", "rich", "matplotlib", "langchain_openai"),
    *(
        "vl_convert",
        "psycopg",
        "opentelemetry",
        "langgraph.checkpoint.sqlite",
        "langgraph.checkpoint.postgres",
        "pytest",
        "hypothesis",
    ),
)
OPEN_ALL = "import amc_agents; [getattr(amc_agents, name) for name in amc_agents.__all__]"


def python(
    repository: Path, code: str, *flags: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that sees the checkout."""
    variables = {**os.environ, "PYTHONPATH": str(repository), **(environment or {})}
    done = subprocess.run([sys.executable, *flags, "-c", code], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(folder.glob("amc_agents-*.whl")))


@pytest.fixture
def model_files(repository: Path) -> list[Path]:
    folder = repository / "amc_agents" / "models" / "embedded"
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in found if path.suffix != ".py"]


@pytest.mark.thorough
def test_every_door_opens_without_torch(repository):
    code = f"{OPEN_ALL}; import sys; print(sorted({{'torch', 'transformers', 'vllm'}} & set(sys.modules)))"
    assert python(repository, code).stdout.strip() == "[]"


def test_the_lower_rooms_need_no_framework(repository):
    code = """
import sys
import amc_agents.types, amc_agents.errors, amc_agents.smc, amc_agents.envs.crafting
print(sorted({name.split(".")[0] for name in sys.modules} & {"langchain", "langchain_core", "langgraph", "torch"}))
"""
    assert python(repository, code).stdout.strip() == "[]"


@pytest.mark.thorough
def test_every_module_imports_without_extras_or_names_the_one_it_needs(repository):
    code = f"""
import importlib, pkgutil, sys
for name in {EXTRAS_MODULES!r}:
    sys.modules[name] = None
import amc_agents
from amc_agents.errors import MissingExtra
for module in pkgutil.walk_packages(amc_agents.__path__, "amc_agents."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except MissingExtra:
        pass
    except ModuleNotFoundError as error:
        # `amc` checks for these before it imports a command (tests/cli).
        if not module.name.startswith("amc_agents.cli.") or error.name.split(".")[0] not in ("typer", "rich"):
            raise
    print(module.name)
"""
    assert "amc_agents.population.wrap" in python(repository, code).stdout.split()


@pytest.mark.thorough
def test_own_modules_take_a_small_share_of_an_import(repository, tmp_path):
    # As on a user's machine the bytecode is there from the second run on. A share does not depend on the machine.
    environment = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    shares = []
    for _ in range(3):
        report = python(repository, OPEN_ALL, "-X", "importtime", environment=environment).stderr
        rows = [line.removeprefix("import time:").split("|") for line in report.splitlines() if "|" in line][1:]
        own = [float(row[0]) for row in rows if row[2].strip().startswith("amc_agents")]
        assert len(own) > 5
        shares.append(sum(own) / sum(float(row[0]) for row in rows))
    # 6 to 12% were seen; a module that trains, plots or asks a server when it is imported takes more than the rest.
    assert min(shares[1:]) < 0.25


def test_base_dependencies_are_the_promised_ones(settings):
    names = {requirement.split(">")[0] for requirement in settings["project"]["dependencies"]}
    assert names == BASE


def test_the_wheel_is_typed_and_carries_the_models(wheel, model_files, repository):
    inside = set(wheel.namelist())
    assert "amc_agents/py.typed" in inside
    assert {path.relative_to(repository).as_posix() for path in model_files} <= inside
    assert {Path(name).suffix for name in inside if "/embedded/" in name} >= {".json", ".safetensors"}
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_the_wheel_carries_nothing_else(wheel):
    outside = [name for name in wheel.namelist() if not name.startswith(("amc_agents/", "amc_agents-"))]
    assert outside == []


def test_the_models_are_small_and_hold_no_pickle(model_files):
    assert sum(path.stat().st_size for path in model_files) <= 4 * MEGABYTE
    assert {path.suffix for path in model_files} <= {".json", ".safetensors", ".jinja"}
    tensors = [load_file(path) for path in model_files if path.suffix == ".safetensors"]
    assert tensors
    assert all(tensors)


def test_the_changelog_knows_the_version(settings, repository):
    headings = [line for line in (repository / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]
    known = [heading.split("[")[1].split("]")[0] for heading in headings]
    assert known[0] == "Unreleased" or known[0] == settings["project"]["version"]


def test_constraints_name_no_machine(repository):
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [line for line in pins if line.count("==") != 1 or "@" in line or "/" in line or "+" in line] == []
