from __future__ import annotations

import asyncio

import pytest

from amc_agents.bench.report import summarise
from amc_agents.bench.runner import compare
from tests.bench.coins import BitWorld, comparison_of_coins, six_methods_of_coins
from tests.bench.tally import Tally


@pytest.fixture
def six_methods():
    return six_methods_of_coins()


@pytest.fixture
def make_comparison():
    BitWorld.started = 0
    return comparison_of_coins


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """The results of six methods on four tasks with two seeds."""
    comparison = comparison_of_coins(n_tasks=4, seeds=(0, 1))
    records = asyncio.run(compare(comparison, tmp_path_factory.mktemp("results")))
    return summarise(records, comparison.methods, comparison.settings, command="amc bench")


@pytest.fixture
def tally(tmp_path):
    """A job whose items only say that they were executed."""
    return Tally(str(tmp_path / "log"))
