"""The matrix: which legs there are, which of them are run, and what fails."""

from __future__ import annotations

import sys

import pytest

from release import matrix
from release.legs import PINNED, legs, supported_pythons


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the matrix with arguments, on a machine without the newest Python: (exit status, legs)."""
    asked = []

    def outcome(leg, *_):
        asked.append(leg.name)
        there = leg.python != supported_pythons()[-1]
        return matrix.Outcome(leg, "1 passed" if there else "no Python", True if there else None)

    def play(*arguments):
        asked.clear()
        monkeypatch.setattr(sys, "argv", ["matrix", "--folder", str(tmp_path), *arguments])
        return matrix.main(), asked

    monkeypatch.setattr(matrix, "build_wheel", lambda folder: folder)
    monkeypatch.setattr(matrix, "run", outcome)
    return play


def test_ci_tests_the_wheel_on_every_python(run):
    names = [f"{python}-pinned" for python in supported_pythons()]
    assert [leg.name for leg in legs() if leg.versions == PINNED] == names
    assert run("--leg", PINNED) == (0, names), "a Python that is not installed is no failure"


def test_a_leg_that_was_asked_for_by_its_name_must_run(run):
    first, *_, last = supported_pythons()
    assert run("--leg", f"{first}-oldest", "--leg", f"{first}-newest") == (0, [f"{first}-oldest", f"{first}-newest"])
    assert run("--leg", f"{last}-newest") == (1, [f"{last}-newest"])


def test_without_arguments_every_leg_runs(run):
    assert run() == (0, [leg.name for leg in legs()])
