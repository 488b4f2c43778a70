"""The shipped verdict model on a real vLLM server gives the log-odds that numpy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amc_agents.critics.spec import parse_critic
from amc_agents.critics.verdict.embedded import export_embedded_verdict
from amc_agents.envs.crafting import generate_tasks, plan
from amc_agents.models.embedded import model_folder
from amc_agents.types import Step, Trajectory
from tests.service.servers import needs_vllm, vllm_server

pytestmark = pytest.mark.service


async def differences(base_url: str, checkpoint: str) -> np.ndarray:
    """`[decisions, candidates]` how far the server of an exported folder is from `verdict:embedded:crafting`."""
    ours: Any = parse_critic("verdict:embedded:crafting")
    theirs: Any = parse_critic(f"verdict:{base_url}?checkpoint={checkpoint}")
    found = []
    for task in generate_tasks(4, "service", optimal_steps=(6, 12)):
        way = plan(task.payload.book, task.payload.goal)
        past = Trajectory(task, (Step(way[0], "Got 1 clay", thought="oak gate using 1 clay"),))
        candidates = [
            past.extended(Step(action, seen)) for action in (way[1], "inventory") for seen in ("", "Got 1 clay")
        ]
        found.append(await ours.log_odds(candidates) - await theirs.log_odds(candidates))
    return np.array(found)


@needs_vllm
async def test_the_served_model_gives_the_log_odds_of_the_embedded_one(tmp_path):
    folder = export_embedded_verdict(model_folder("crafting"), tmp_path / "merged")
    with vllm_server(folder, role="policy", name="verdict") as server:
        found = await differences(server.url, str(folder))
    assert np.abs(found).max() < 1e-3
