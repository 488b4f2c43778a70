"""Which python, which packages, and which extras are there."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import TYPE_CHECKING, NamedTuple

from amc_agents.doctor.check import Check

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXTRAS = {
    "train": "to train critics, and for critics hf:",
    "qlora": "to train on a base model in 4 bits",
    "serve": "to start vLLM servers from here",
    "prices": "to know what providers' models cost",
    "sqlite": "to keep checkpoints in SQLite",
    "postgres": "to keep checkpoints in PostgreSQL",
}
"""What each extra is for."""


class _Found(NamedTuple):
    there: list[str]
    """Name and version of what is installed as required."""
    absent: list[str]
    """Names."""
    wrong: list[str]
    """Name, version, and the version that was required."""


def installation(package: str = "amc-agents") -> list[Check]:
    """Python, the packages that are needed, and each extra."""
    python = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        told = metadata(package)
    except PackageNotFoundError:
        return [
            Check("python", "ok", python),
            Check("packages", "skipped", f"{package} runs from its sources without being installed: its requirements "
                  "are not known", f"pip install {package}"),
        ]  # fmt: skip
    checks = [Check("python", "ok", f"{python}; {package} {told['Version']}")]
    requirements = told.get_all("Requires-Dist") or []
    checks.append(_packages(package, _look(requirements, "")))
    for extra, purpose in EXTRAS.items():
        checks.append(_extra(package, extra, purpose, _look(requirements, extra)))
    return checks


def _packages(package: str, found: _Found) -> Check:
    if found.absent or found.wrong:
        wrong = [*(f"{name} is not installed" for name in found.absent), *found.wrong]
        return Check("packages", "failed", "; ".join(wrong), f"pip install --upgrade {package}")
    return Check("packages", "ok", ", ".join(found.there))


def _extra(package: str, extra: str, purpose: str, found: _Found) -> Check:
    name, install = f"extra {extra}", f"pip install '{package}[{extra}]'"
    if found.wrong:
        return Check(name, "failed", "; ".join(found.wrong), install)
    if found.absent:
        return Check(name, "skipped", f"not installed: {', '.join(found.absent)}", f"{install} ({purpose})")
    return Check(name, "ok", ", ".join(found.there) or "nothing is needed on this system")


def _look(requirements: Iterable[str], extra: str) -> _Found:
    """What is there of the requirements of an extra ("": of no extra)."""
    from packaging.requirements import Requirement

    found = _Found([], [], [])
    for requirement in map(Requirement, requirements):
        if not _belongs(requirement, extra):
            continue
        try:
            there = version(requirement.name)
        except PackageNotFoundError:
            found.absent.append(requirement.name)
            continue
        if requirement.specifier.contains(there, prereleases=True):
            found.there.append(f"{requirement.name} {there}")
        else:
            found.wrong.append(f"{requirement.name} is {there}, expected {requirement.specifier}")
    return found


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})
