"""Check the Python version, the required packages and the extras."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import TYPE_CHECKING, NamedTuple

from amc_agents.envs.real.snapshots import snapshots_in
from amc_agents.operations.doctor.check import Check

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXTRAS = {
    "cli": "for the `amc` command",
    "bench": "to draw the pictures of `amc demo` and `amc bench`",
    "openai": "for models of OpenAI, and of servers with its API",
    "train": "to train critics, and for critics hf:",
    "qlora": "to train on a base model in 4 bits",
    "serve": "to start vLLM servers from here",
    "prices": "to compute the cost of providers' models",
    "report": "for the charts of amc report",
    "otel": "for OpenTelemetry traces",
    "sqlite": "for checkpoints and posteriors in SQLite",
    "postgres": "for checkpoints and posteriors in PostgreSQL",
    "ray": "for `--executor ray`",
}
"""Purpose of each extra."""


class _Packages(NamedTuple):
    installed: list[str]
    """Name and version of packages that meet their requirement."""
    absent: list[str]
    """Names of missing packages."""
    wrong: list[str]
    """Name, version and required version of packages that do not meet their requirement."""


def installation(package: str = "amc-agents") -> list[Check]:
    """Check Python, the required packages and each extra."""
    python = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        distribution = metadata(package)
    except PackageNotFoundError:
        return [
            Check("python", "ok", python),
            Check("packages", "skipped", f"{package} runs from its source code and is not installed, so its "
                  "requirements are not known", f"pip install {package}"),
        ]  # fmt: skip
    checks = [Check("python", "ok", f"{python}; {package} {distribution['Version']}")]
    requirements = distribution.get_all("Requires-Dist") or []
    checks.append(_required(package, _installed(requirements, "")))
    for extra, purpose in EXTRAS.items():
        checks.append(_extra(package, extra, purpose, _installed(requirements, extra)))
    return checks


def saved_worlds() -> Check:
    """List the snapshots of worlds in the temporary folder, which nobody removes if their threads never go on."""
    found = snapshots_in()
    if not found:
        return Check("saved worlds", "ok", f"no snapshots in {tempfile.gettempdir()}")
    path, age = found[0]
    return Check(
        "saved worlds",
        "ok",
        f"{len(found)} snapshots in {path.parent}, the oldest {age.days} days old",
        "Unfinished runs and conversations need theirs. If there are none that old: "
        "amc_agents.envs.remove_snapshots(older_than=timedelta(days=30))",
    )


def _required(package: str, packages: _Packages) -> Check:
    if packages.absent or packages.wrong:
        problems = [*(f"{name} is not installed" for name in packages.absent), *packages.wrong]
        return Check("packages", "failed", "; ".join(problems), f"pip install --upgrade {package}")
    return Check("packages", "ok", ", ".join(packages.installed))


def _extra(package: str, extra: str, purpose: str, packages: _Packages) -> Check:
    name, install = f"extra {extra}", f"pip install '{package}[{extra}]'"
    if packages.wrong:
        return Check(name, "failed", "; ".join(packages.wrong), install)
    if packages.absent:
        return Check(name, "skipped", f"not installed: {', '.join(packages.absent)}", f"{install} ({purpose})")
    return Check(name, "ok", ", ".join(packages.installed) or "not needed on this system")


def _installed(requirements: Iterable[str], extra: str) -> _Packages:
    """Compare the requirements of an extra ("": those of no extra) with the installed packages."""
    from packaging.requirements import Requirement

    packages = _Packages([], [], [])
    for requirement in map(Requirement, requirements):
        if not _belongs(requirement, extra):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            packages.absent.append(requirement.name)
            continue
        if requirement.specifier.contains(installed, prereleases=True):
            packages.installed.append(f"{requirement.name} {installed}")
        else:
            packages.wrong.append(f"{requirement.name} is {installed}, expected {requirement.specifier}")
    return packages


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})
