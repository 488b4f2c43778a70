from __future__ import annotations

import pytest

from amc_agents.bench.methods import amc, amc_hidden, best_of_n, react, react_greedy, smc
from amc_agents.bench.runner import Comparison
from amc_agents.types import Task
from tests.bench.coins import TUNED, BitWorld, ShareOfOnes, coins


@pytest.fixture
def six_methods():
    return [react(), react_greedy(), best_of_n(), smc(TUNED), amc(TUNED), amc_hidden(TUNED)]


@pytest.fixture
def make_comparison(six_methods):
    BitWorld.started = 0

    def make(n_tasks=3, methods=None, **settings):
        given = {"environment": BitWorld, "critic": ShareOfOnes(), "n_particles": 8, "horizon": 6, **settings}
        tasks = [Task(f"bits/{number}", f"Say bits, {number}.") for number in range(n_tasks)]
        return Comparison(policy=coins, tasks=tasks, methods=methods or six_methods, **given)

    return make
