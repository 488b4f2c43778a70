import pytest

from tests.population.worlds import SumWorld


@pytest.fixture(autouse=True)
def worlds_counted_from_zero():
    """Reset the counters, so that a test that leaves a world open does not fail later tests."""
    SumWorld.made = SumWorld.open = 0
