"""Build every distribution of a commit twice, in two folders, and compare the results byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from release.projects import projects


class ReleaseError(Exception):
    """What must be put right before a release."""


def build_twice(repository: Path, commit: str, work: Path, out: Path) -> list[Path]:
    """Build the sdist and the wheel of every project and return the files.

    The second time, each wheel is built from the unpacked sdist, which proves that the sdist is complete.

    Args:
        repository: a git checkout. Files that are not committed take no part.
        commit: what is built.
        work: an empty folder for the two copies of the commit.
        out: an empty folder for the distributions.

    Raises:
        ReleaseError: a build failed, or the two builds differ.
    """
    epoch = _git(repository, "log", "-1", "--format=%ct", commit).decode().strip()
    copies = export(repository, commit, work / "one"), export(repository, commit, work / "another" / "place")
    again = work / "again"
    for first, second in zip(projects(copies[0]), projects(copies[1]), strict=True):
        _hatch(first.folder, out, epoch, "sdist", "wheel")
        sdist = _hatch(second.folder, again, epoch, "sdist")
        _hatch(unpacked(sdist, work / "unpacked" / second.name), again, epoch, "wheel")
    if different := differing(out, again):
        raise ReleaseError(f"two builds differ: {', '.join(different)}. Compare the files in {out} and {again}")
    return sorted(out.iterdir())


def export(repository: Path, commit: str, folder: Path) -> Path:
    """Copy a commit into a folder; each integration gets the licence, which its distributions must contain."""
    folder.mkdir(parents=True)
    archive = folder.parent / f"{folder.name}.tar"
    archive.write_bytes(_git(repository, "archive", "--format=tar", commit))
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    for project in projects(folder)[1:]:
        shutil.copyfile(folder / "LICENSE", project.folder / "LICENSE")
    return folder


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist and return its only folder."""
    with tarfile.open(sdist) as files:
        files.extractall(folder, filter="data")
    (inner,) = folder.iterdir()
    return inner


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of files that are missing from either folder or have different bytes."""
    names = {path.name for folder in (one, other) for path in folder.iterdir()}
    return sorted(name for name in names if _content(one / name) != _content(other / name))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _hatch(project: Path, out: Path, epoch: str, *targets: str) -> Path:
    """Build targets of a project and return the newest file."""
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.iterdir())
    wanted = [argument for target in targets for argument in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{project.name} does not build: {done.stderr.strip()[-400:]}")
    return (set(out.iterdir()) - before).pop()


def _git(repository: Path, *command: str) -> bytes:
    return subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True).stdout
