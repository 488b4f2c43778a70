"""The projects of this repository, the core first, and the facts that a release needs about each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CORE = "amc-agents"


@dataclass(frozen=True)
class Project:
    """A folder with a `pyproject.toml`."""

    folder: Path
    settings: dict[str, Any]
    """Content of its `pyproject.toml`."""

    @property
    def name(self) -> str:
        """Name of the distribution."""
        return str(self.settings["project"]["name"])

    @property
    def version(self) -> str:
        """Version of the distribution."""
        return str(self.settings["project"]["version"])


def projects(root: Path) -> list[Project]:
    """Return the core and every integration."""
    folders = [root, *sorted(path.parent for path in root.glob("integrations/*/pyproject.toml"))]
    return [Project(folder, tomllib.loads((folder / "pyproject.toml").read_text())) for folder in folders]


def disagreements(known: list[Project], changelog: str) -> Iterator[str]:
    """Yield why these projects cannot be released together: versions, bounds or the changelog disagree."""
    core = known[0].version
    if not any(heading in changelog for heading in ("## [Unreleased]", f"## [{core}]")):
        yield f"CHANGELOG.md has no section for {core}"
    for project in known[1:]:
        if project.version != core:
            yield f"{project.name} has version {project.version}, the core {core}: release them together"
        needed = map(Requirement, project.settings["project"]["dependencies"])
        bounds = [requirement.specifier for requirement in needed if requirement.name == CORE]
        if not bounds or not any("<" in str(bound) and bound.contains(core) for bound in bounds):
            yield f"{project.name} must depend on {CORE} with an upper bound that admits {core}"
