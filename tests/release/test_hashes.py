"""`constraints-hashes.txt` has the versions of `constraints.txt` and everything that `make setup` needs."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.projects import projects

WITHOUT = {"torch", "setuptools"}
"""torch has a different file for each kind of machine, and brings setuptools."""


def versions(text):
    lines = re.findall(r"^([A-Za-z0-9][^\s\\]*==[^\s\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


@pytest.fixture(scope="module")
def hashed(repository):
    return (repository / "constraints-hashes.txt").read_text()


def test_every_package_has_a_hash(hashed):
    entries = re.split(r"^(?=[A-Za-z0-9])", hashed, flags=re.MULTILINE)[1:]
    assert len(entries) > 100
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


def test_versions_are_those_of_the_constraints(repository, hashed):
    pinned = versions((repository / "constraints.txt").read_text())
    assert {name: pinned.get(name) for name in versions(hashed)} == versions(hashed), "run `make lock`"


def test_nothing_that_make_setup_needs_is_missing(repository, hashed):
    settings = projects(repository)[0].settings["project"]
    extras = re.search(r"^EXTRAS := (.*)$", (repository / "Makefile").read_text(), re.MULTILINE)[1].split()
    needed = settings["dependencies"] + [line for extra in extras for line in settings["optional-dependencies"][extra]]
    for requirement in map(Requirement, needed):
        name = canonicalize_name(requirement.name)
        assert name in WITHOUT or requirement.specifier.contains(versions(hashed)[name]), (
            f"{requirement}: run `make lock`"
        )
