import pytest

from tests.population.worlds import SumWorld


@pytest.fixture(autouse=True)
def worlds_counted_from_zero():
    """Each test counts its own worlds; one that left a world open must not fail the tests after it."""
    SumWorld.made = SumWorld.open = 0
