from __future__ import annotations

import pytest
from seen import Seen

from tests.population.worlds import SumWorld


@pytest.fixture(autouse=True)
def worlds_counted_from_zero():
    SumWorld.made = SumWorld.open = 0


@pytest.fixture
def seen():
    """The spans and events of a test, without content."""
    with Seen() as seen:
        yield seen


@pytest.fixture
def seen_with_content():
    """The same, with content."""
    with Seen(capture_content=True) as seen:
        yield seen
