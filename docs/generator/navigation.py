"""The navigation in mkdocs.yml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]


def configuration(path: Path) -> dict[str, Any]:
    """Return the configuration of the site."""
    read: dict[str, Any] = yaml.safe_load(path.read_text())
    return read


def navigation_pages(entries: list[Any], section: str = "") -> Iterator[tuple[str, str]]:
    """Yield the top-level section and the path of each page in a navigation."""
    for entry in entries:
        title, content = next(iter(entry.items()))
        if isinstance(content, str):
            yield section or title, content
        else:
            yield from navigation_pages(content, section or title)
