from __future__ import annotations

import pytest

from tests.bench.coins import BitWorld, comparison_of_coins, six_methods_of_coins


@pytest.fixture
def six_methods():
    return six_methods_of_coins()


@pytest.fixture
def make_comparison():
    BitWorld.started = 0
    return comparison_of_coins
