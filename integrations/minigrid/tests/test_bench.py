from __future__ import annotations

import pytest
from amc_agents_minigrid import ACTIONS

from amc_agents.bench.methods import Tuned, listed_variants
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.run_files import read_decisions
from amc_agents.bench.runner import compare


@pytest.mark.parametrize("world", ["babyai-go-to", "babyai-pick-up"])
async def test_with_the_expert_as_critic_and_all_actions_as_candidates_tasks_are_solved(world, tmp_path):
    oracle = ComparisonPlan(methods=(), n_tasks=1, world=world).world_spec.oracle
    methods = [one for one in listed_variants(Tuned(alpha=5.0, k=2), oracle=oracle) if one.oracle]
    plan = ComparisonPlan(methods=tuple(methods), n_tasks=2, world=world, split="train", first=52)
    records = await compare(plan.comparison(), tmp_path, keep_decisions=True)
    assert [one.scores.success for one in records] == [1.0] * 2
    assert all(0.1 <= one.scores.oracle < 1.0 for one in records)  # the later, the less
    assert all(one.scores.deployable is None for one in records)
    for one in read_decisions(tmp_path):
        assert one.success
        assert all([each["action"] for each in made["candidates"]] == list(ACTIONS) for made in one.decisions)
