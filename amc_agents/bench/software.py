"""The versions of the software that results depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("amc-agents", "langchain", "langchain-core", "langgraph", "numpy", "torch", "transformers")


@cache
def software() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on."""
    return {"python": platform.python_version()} | {name: found for name in PACKAGES if (found := _version(name))}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
