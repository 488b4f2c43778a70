"""The software bill of materials: what the core's wheel and its extras install, in CycloneDX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from release.building import ReleaseError
from release.uv import uv

LISTED = "bench,cli,openai,postgres,prices,report,sqlite,train"
"""Extras whose packages are listed. Left out: qlora and serve, which need a GPU or bring gigabytes of one, and dev."""


def write_sbom(wheel: Path, repository: Path, work: Path, sbom: Path) -> Path:
    """Install a wheel with its extras at the versions of `constraints.txt`, and write what is installed.

    Raises:
        ReleaseError: a package could not be installed or read.
    """
    python = work / "installed" / "bin" / "python"
    _checked(uv("venv", "--quiet", "--python", sys.executable, str(python.parents[1])))
    into = ("--quiet", "--python", str(python), "--constraint", str(repository / "constraints.txt"))
    _checked(uv("pip", "install", *into, f"{wheel}[{LISTED}]"))
    described = ["--pyproject", str(repository / "pyproject.toml"), "--output-reproducible", "--of", "JSON"]
    command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python), *described, "-o", str(sbom)]
    _checked(subprocess.run(command, capture_output=True, text=True))
    return sbom


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise ReleaseError(f"{' '.join(done.args[2:5])} failed: {done.stderr.strip()[-400:]}")
