"""The public names with their signatures, as text that is committed: changing one is then a decision.

    python -m release.public_api            show what differs from the committed listing
    python -m release.public_api --write    renew it

Public is what the modules in `MODULES` offer; any other module may change without notice. Once a version is released,
its listing is committed as `release/public-api-released.txt`. From then on every name that has changed or is gone since
must be named in the section [Unreleased] of CHANGELOG.md.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from release.projects import ROOT

LISTING = Path("release/public-api.txt")
RELEASED = Path("release/public-api-released.txt")
MODULES = (
    "amc_agents",
    "amc_agents.critics",
    "amc_agents.envs",
    "amc_agents.envs.crafting",
    "amc_agents.envs.registry",
    "amc_agents.errors",
    "amc_agents.operations.importing",
    "amc_agents.lac",
    "amc_agents.models.embedded",
    "amc_agents.pnlc",
    "amc_agents.population",
    "amc_agents.prices",
    "amc_agents.psrl",
    "amc_agents.operations.rollout",
    "amc_agents.smc",
    "amc_agents.testing",
    "amc_agents.training",
)


def listing() -> str:
    """Return the public names, one a line, sorted within their module."""
    return "".join(f"{line}\n" for name in MODULES for line in _lines_of(importlib.import_module(name)))


def unnamed_changes(root: Path, changelog: str) -> list[str]:
    """Return a sentence for each name that has changed since the release and that the changelog leaves out."""
    if not (root / RELEASED).exists():
        return []
    changed = changes((root / RELEASED).read_text(), (root / LISTING).read_text())
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## [")[0]
    return [
        f"{name} has changed since the release: name it under [Unreleased] in CHANGELOG.md"
        for name in changed
        if name.rpartition(".")[2] not in unreleased
    ]


def changes(before: str, after: str) -> list[str]:
    r"""Return the names of lines that were changed or removed; new names break nobody.

    >>> changes("m.f(x)\nm.g(x)\nm.h(x)\n", "m.f(x)\nm.g(y)\nm.new(x)\n")
    ['m.g', 'm.h']
    """
    gone = set(before.splitlines()) - set(after.splitlines())
    return sorted({line.partition("(")[0].partition(":")[0].removeprefix("class ") for line in gone})


def _lines_of(module: ModuleType) -> Iterator[str]:
    for name in sorted(_names_of(module)):
        yield from _lines(f"{module.__name__}.{name}", getattr(module, name))


def _names_of(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _lines(path: str, value: Any) -> Iterator[str]:
    """Yield a line for a function or a constant; for a class, one for itself and one for each public attribute."""
    if not inspect.isclass(value):
        yield f"{path}{_signature(value)}" if callable(value) else f"{path}: {type(value).__name__}"
        return
    bases = ", ".join(base.__qualname__ for base in value.__bases__ if base is not object)
    yield f"class {path}{_signature(value) if _is_ours(value) else '(...)'}{f' <- {bases}' if bases else ''}"
    # Attributes of a base elsewhere, such as pydantic's, are not this project's to keep.
    for name in sorted(_attributes(value)):
        attribute = inspect.getattr_static(value, name)
        if isinstance(attribute, property | cached_property):
            yield f"{path}.{name}: property"
        elif isinstance(attribute, staticmethod | classmethod) or callable(attribute):
            yield f"{path}.{name}{_signature(getattr(value, name))}"


def _attributes(value: type) -> set[str]:
    ours = [base for base in value.__mro__ if base.__module__.startswith("amc_agents")]
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


def _is_ours(value: Any) -> bool:
    """Return whether the class has a constructor of its own, not that of another library's base class."""
    makers = (getattr(value, name) for name in ("__init__", "__new__"))
    return any(str(getattr(maker, "__module__", "")).startswith("amc_agents") for maker in makers)


def _signature(value: Any) -> str:
    """Return the signature without addresses; "(...)" if the object has none that can be read."""
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "(...)"
    return f"{text} async" if inspect.iscoroutinefunction(value) else text


def main() -> int:
    """Compare with the committed listing, or renew it."""
    path, now = ROOT / LISTING, listing()
    before = path.read_text() if path.exists() else ""
    if "--write" in sys.argv[1:]:
        path.write_text(now)
        return 0
    sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), now.splitlines(True), "committed", "now"))
    return int(before != now)


if __name__ == "__main__":
    sys.exit(main())
