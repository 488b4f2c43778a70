"""The legs of the matrix: a Python, which versions of the dependencies, and which tests.

- `oldest`: the lowest versions that `pyproject.toml` allows, also of the parts of LangChain and LangGraph that the
  packages `langchain` and `langgraph` install;
- `newest`: what an installation of today gets;
- `pinned`: the versions of `constraints.txt`, the core alone, and only the tests in `release/wheel`: the CI's legs;
- `train-oldest`, `train-newest`: with the extra `train`. torch stays at the version of `constraints.txt`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from release.projects import ROOT, projects

EXTRAS = ("bench", "cli", "openai", "prices", "report", "sqlite")
PARTS = ("langchain-core", "langgraph-checkpoint", "langgraph-prebuilt", "langgraph-sdk")
"""Imported by the library, installed by `langchain` and `langgraph`."""
TOOLS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-socket", "pytest-xdist")
"""Always at the versions of `constraints.txt`: only what the wheel needs varies."""
FREE_TOOLS = ("hatchling", "langchain-tests")
"""At whatever version fits those of the leg."""
WHEEL = "wheel"
PINNED = "pinned"
SEAMS = (
    WHEEL,
    "tests/lac/test_lac_middleware.py",
    "tests/pnlc/test_pnlc_middleware.py",
    "tests/population/durable/test_resume.py",
    "tests/population/test_amc_in_langgraph.py",
    "tests/population/test_amc_stores.py",
    "tests/population/test_run_budget.py",
    "tests/psrl/test_psrl_middleware.py",
    "tests/psrl/test_psrl_nodes.py",
    "tests/runtime",
    "tests/smc/test_smc_exact.py",
    "tests/test_composition.py",
)
"""The tests at the seams to LangGraph, LangChain, pydantic, numpy and the databases of prices."""
TRAINING = (
    WHEEL,
    "tests/models",
    "tests/training/value",
    "tests/training/verdict",
    "--ignore=tests/training/value/test_one_pass_benchmark.py",  # It tests a script of the checkout.
)
"""The tests of what needs torch: models, and the training of value models and verdicts."""


@dataclass(frozen=True)
class Leg:
    """One environment and what is tested in it."""

    python: str
    """Such as "3.11"."""
    versions: str
    """"oldest", "newest" or `PINNED`."""
    extras: tuple[str, ...] = EXTRAS
    tests: tuple[str, ...] = SEAMS
    """Arguments of pytest in the copy: `wheel`, and folders and files of `tests/`."""

    @property
    def dependencies(self) -> str:
        """Name of its dependencies in the table."""
        return f"train-{self.versions}" if "train" in self.extras else self.versions

    @property
    def name(self) -> str:
        """Name for `--leg`."""
        return f"{self.python}-{self.dependencies}"


def legs() -> list[Leg]:
    """Return all legs. torch is installed for the first Python only."""
    pythons = supported_pythons()
    both = ("oldest", "newest")
    training = [Leg(pythons[0], versions, ("train",), TRAINING) for versions in both]
    return [
        *(Leg(python, PINNED, (), (WHEEL,)) for python in pythons),
        *(Leg(python, versions) for python in pythons for versions in both),
        *training,
    ]


def supported_pythons() -> list[str]:
    """Return the Pythons that the core declares."""
    classifiers = "\n".join(projects(ROOT)[0].settings["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)


def resolution(leg: Leg, folder: Path) -> list[str]:
    """Return the arguments with which uv finds a leg's versions. Only wheels are taken: nobody waits for a build."""
    constraints = ROOT / "constraints.txt"
    fixed = (*TOOLS, "torch") if "train" in leg.extras else TOOLS
    free = () if leg.versions == PINNED else (*FREE_TOOLS, *PARTS)
    requirements = folder / "tests.in"
    requirements.write_text("\n".join([*pins(constraints, fixed), *free]))
    extras = [argument for extra in leg.extras for argument in ("--extra", extra)]
    chosen = {"oldest": ["--resolution", "lowest-direct"], "newest": [], PINNED: ["--constraint", str(constraints)]}
    return [str(ROOT / "pyproject.toml"), str(requirements), *extras, *chosen[leg.versions], "--only-binary", ":all:"]


def pins(constraints: Path, names: tuple[str, ...]) -> list[str]:
    """Return the lines of a constraints file about some packages."""
    lines = [line for line in constraints.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return [line for line in lines if Requirement(line).name in names]
