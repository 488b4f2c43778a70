"""The models behind docs/scale.md, against what was measured and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import block_cache, load_model


@pytest.mark.parametrize(("block_size", "measured"), [(128, 1438), (32, 606)])
def test_the_cache_computes_what_a_server_computed(block_size, measured):
    cache = block_cache.BlockCache(10_000, block_size)
    computed = sum(cache.compute(range(round(22.6 + 303.4 * step / 19))) for step in range(20))
    assert abs(computed - measured) <= 3


def test_a_prompt_is_never_cached_whole():
    cache = block_cache.BlockCache(10, 4)
    assert [cache.compute(range(8)) for _ in range(2)] == [8, 4]
    assert cache.compute([*range(4), 9, 9, 9, 9]) == 4
    assert cache.compute([9, *range(1, 8)]) == 8  # the first block differs, and with it all names after it


def test_the_end_of_the_oldest_prompt_is_replaced_first():
    cache = block_cache.BlockCache(4, 4)
    cache.compute(range(12))
    cache.compute(range(100, 108))  # needs two blocks: the last of the first prompt goes
    assert cache.compute(range(12)) == 4
    assert (cache.prompt_tokens, cache.cached_tokens) == (32, 8)


def test_measured_points(capsys):
    assert load_model.check_counts()
    assert load_model.check_barrier(runs=1500)


@pytest.mark.thorough  # numeric
def test_paper_and_simulation_agree_where_a_server_is_saturated():
    load = load_model.Workload(n_particles=4, steps=4, weighings=2, output_tokens=20, tool_seconds=0.1)
    for slow in ("policy", "critic"):
        server = load_model.Server(0.005, 1 / 5_000)
        fast = load_model.Server(0.0001, 1 / 1_000_000)
        speeds = {"policy": fast, "critic": fast, slow: server}
        fleet = load_model.Fleet(**speeds, abreast=24)
        limits = load_model.on_paper(load, fleet)
        assert min(limits, key=limits.__getitem__) == slow
        rate = load_model.Simulation(load, fleet, np.random.default_rng(0)).tasks_per_second(240)
        assert rate == pytest.approx(limits[slow], rel=0.15)


def test_more_replicas_serve_more_tasks_until_something_else_is_the_limit():
    load = load_model.Workload()
    one = load_model.Fleet(load_model.POLICY, load_model.CRITIC, abreast=1000)
    limits, doubled = (load_model.on_paper(load, fleet) for fleet in (one, replace(one, n_policy=2)))
    assert doubled["policy"] == pytest.approx(2 * limits["policy"])
    assert doubled["critic"] == limits["critic"]
