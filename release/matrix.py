"""Test the built wheel, not the checkout, on each Python and against the oldest and the newest dependencies.

    python -m release.matrix                every leg
    python -m release.matrix --leg pinned   the legs of the CI: the pinned versions on each Python
    python -m release.matrix --leg NAME     one leg
    python -m release.matrix --write        and put the table into docs/support.md

A leg is an environment of its own, in a folder that holds the wheel and a copy of the tests and the examples, but no
checkout (`release/legs.py` lists the legs). Exits with 1 if a leg fails. A Python that is not installed is reported
and is not a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from release.legs import PINNED, WHEEL, Leg, legs, resolution
from release.projects import ROOT
from release.uv import uv

SHOWN = ("langgraph", "langchain", "langchain-core", "pydantic", "numpy", "transformers", "torch")
PAGE = ROOT / "docs" / "support.md"
BEGIN, END = "<!-- begin: python -m release.matrix --write -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Outcome:
    """What a leg came to."""

    leg: Leg
    result: str
    """pytest's last line, or the reason why the leg did not run."""
    passed: bool | None
    """None: the leg did not run."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the packages in `SHOWN`."""


def run(leg: Leg, wheel: Path, folder: Path, workers: int) -> Outcome:
    """Install and test one leg in a folder, which is replaced."""
    interpreter = interpreter_of(leg.python)
    if not interpreter:
        return Outcome(leg, f"no Python {leg.python} on this machine", None)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment, pins = folder / "environment", folder / "pins.txt"
    python = environment / "bin" / "python"
    into = ("--quiet", "--python", str(python))
    for step in (
        ("venv", "--quiet", "--python", interpreter, str(environment)),
        ("pip", "compile", *into, "--no-header", *resolution(leg, folder), "--output-file", str(pins)),
        ("pip", "install", *into, "--requirement", str(pins)),
        ("pip", "install", *into, "--no-deps", str(wheel)),
    ):
        done = uv(*step)
        if done.returncode:
            return Outcome(leg, f"uv {' '.join(step[:2])}: {done.stderr.strip()[-300:]}", False)
    result, passed = test(python, leg.tests, folder / "outside", workers)
    return Outcome(leg, result, passed, versions_in(pins))


def interpreter_of(version: str) -> str:
    """Return the path of a Python of this machine, also of one that pyenv keeps off the path; "" if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = sorted(versions.glob(f"{version}.*/bin/python"))
    return str(own[-1]) if own else uv("python", "find", "--no-project", version).stdout.strip()


def test(python: Path, tests: tuple[str, ...], folder: Path, workers: int) -> tuple[str, bool]:
    """Run tests in a folder that holds nothing but their copy; return pytest's last line and whether all passed."""
    ignored = shutil.ignore_patterns("__pycache__", "service")
    for source in ("tests", "examples", "release/wheel"):
        shutil.copytree(ROOT / source, folder / Path(source).name, ignore=ignored)
    shutil.move(folder / WHEEL / "pytest.ini", folder / "pytest.ini")
    command = [str(python), "-m", "pytest", "-q", "--numprocesses", str(workers), *tests]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.strip()] or [done.stderr.strip()[-300:]]
    return lines[-1].strip("= "), done.returncode == 0


def versions_in(pins: Path) -> dict[str, str]:
    """Return package -> version of the packages that the table shows."""
    found = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", pins.read_text(), re.MULTILINE))
    return {name: found[name] for name in SHOWN if name in found}


def table(outcomes: list[Outcome]) -> str:
    """Format the outcomes as a Markdown table. Durations are those of a machine, and left out."""
    rows = [["Python", "dependencies", *SHOWN, "result"], ["---"] * (len(SHOWN) + 3)]
    for each in outcomes:
        versions = [each.versions.get(name, "") for name in SHOWN]
        rows.append([each.leg.python, each.leg.dependencies, *versions, re.sub(r" in [\d.]+s.*", "", each.result)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(page: str, outcomes: list[Outcome]) -> str:
    """Replace the table between the two marks of a page."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(outcomes)}\n{END}{rest.partition(END)[2]}"


def build_wheel(folder: Path) -> Path:
    """Build the core's wheel from this checkout into a folder, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("amc_agents-*.whl"))


def main() -> int:
    """Run the legs, print their outcomes, and write the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {leg.name: leg for leg in legs()}
    parser.add_argument("--leg", action="append", choices=[*known, PINNED], help="may be repeated; default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--quick", action="store_true", help="only the tests in release/wheel")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    wheel, outcomes = build_wheel(arguments.folder / "wheel"), []
    named = arguments.leg or list(known)
    for name in [name for name, leg in known.items() if name in named or leg.versions in named]:
        started = time.monotonic()
        leg = replace(known[name], tests=(WHEEL,)) if arguments.quick else known[name]
        outcomes.append(run(leg, wheel, arguments.folder / name, arguments.workers))
        print(f"{name}: {outcomes[-1].result} ({time.monotonic() - started:.0f} s in all)", flush=True)
    print(table(outcomes), end="")
    if arguments.write:
        PAGE.write_text(with_table(PAGE.read_text(), outcomes))
    # A leg that was asked for by its own name must run.
    failed = [
        each.leg.name
        for each in outcomes
        if each.passed is False or (each.passed is None and each.leg.name in (arguments.leg or ()))
    ]
    print(f"failed: {', '.join(failed)}" if failed else "every leg that could run has passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
