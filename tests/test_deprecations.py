"""Deprecated names say since when and until when, and are gone when that version comes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

import amc_agents

PACKAGE = Path(amc_agents.__file__).parent
STATED = re.compile(r"deprecated in (\d+\.\d+\.\d+) and removed in (\d+\.\d+\.\d+): \w+")


def deprecations(source: str) -> Iterator[str]:
    """Yield the messages of all `@deprecated(...)` and `warn(..., DeprecationWarning)`; "" for what is no text."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        names = {each.id for each in (call.func, *call.args[1:]) if isinstance(each, ast.Name)}
        names |= {each.value.id for each in call.keywords if isinstance(each.value, ast.Name)}
        if isinstance(call.func, ast.Attribute):
            names.add(call.func.attr)
        if names & {"deprecated", "DeprecationWarning"}:
            first = call.args[0] if call.args else None
            yield first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def fault(message: str, current: str) -> str | None:
    """What is wrong with a deprecation in a version; None: nothing."""
    stated = STATED.search(message)
    if stated is None:
        return 'expected "... is deprecated in X.Y.Z and removed in X.Y.Z: use ..."'
    since, until = map(Version, stated.groups())
    if not since <= Version(current) < until:
        return f"it is to be there from {since} until before {until}, and this is {current}"
    return None


def messages() -> list[str]:
    return [
        message
        for path in PACKAGE.rglob("*.py")
        for text in [path.read_text()]
        if "deprecated" in text or "DeprecationWarning" in text
        for message in deprecations(text)
    ]


def test_every_deprecation_names_its_releases_and_is_gone_in_time():
    assert [(message, wrong) for message in messages() if (wrong := fault(message, amc_agents.__version__))] == []


@pytest.mark.parametrize(
    ("message", "current", "wrong"),
    [
        ("f is deprecated in 0.1.0 and removed in 0.2.0: use g", "0.1.0", None),
        ("f is deprecated in 0.1.0 and removed in 0.2.0: use g", "0.1.9", None),
        ("f is deprecated in 0.1.0 and removed in 0.2.0: use g", "0.2.0", "from 0.1.0 until before 0.2.0"),
        ("f is deprecated in 0.9.0 and removed in 0.10.0: use g", "0.11.0", "from 0.9.0 until before 0.10.0"),
        ("f is deprecated in 0.3.0 and removed in 0.4.0: use g", "0.2.0", "from 0.3.0"),
        ("f is deprecated in 0.1.0 and removed in 0.2.0", "0.1.0", "expected"),
        ("f is deprecated: use g", "0.1.0", "expected"),
        ("", "0.1.0", "expected"),
    ],
)
def test_what_is_wrong_with_a_deprecation(message, current, wrong):
    said = fault(message, current)
    assert said is None if wrong is None else wrong in str(said)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("@deprecated('no f')\ndef f(): ...", ["no f"]),
        ("@typing_extensions.deprecated('no f')\nclass F: ...", ["no f"]),
        ("warnings.warn('no f', DeprecationWarning, stacklevel=2)", ["no f"]),
        ("warn('no f', category=DeprecationWarning)", ["no f"]),
        ("warn(text, DeprecationWarning)", [""]),
        ("warn('slow', UserWarning)", []),
    ],
)
def test_deprecations_are_found_in_code(source, said):
    assert [*deprecations(source)] == said
