"""httpcore leaves the connection of a request that is cancelled while it connects to Python's garbage collector.

That is a warning about an unclosed socket now and then (docs/reliability.md). Whether a socket is really left is tested
by `leftovers`, which counts descriptors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

UNCLOSED = tuple(
    f"ignore:Exception ignored in. <{what}:pytest.PytestUnraisableExceptionWarning"
    for what in ("socket.socket", "function _SelectorTransport.__del__")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.filterwarnings(*UNCLOSED))
