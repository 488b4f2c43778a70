"""The shipped verdict model has the same log-odds on a real vLLM server as in numpy."""

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
    """Return differences `[decisions, candidates]` of a served export from `verdict:embedded:crafting`."""
    embedded: Any = parse_critic("verdict:embedded:crafting")
    served: Any = parse_critic(f"verdict:{base_url}?checkpoint={checkpoint}")
    rows = []
    for task in generate_tasks(4, "service", optimal_steps=(6, 12)):
        way = plan(task.payload.book, task.payload.goal)
        past = Trajectory(task, (Step(way[0], "Got 1 clay", thought="oak gate using 1 clay"),))
        candidates = [
            past.extended(Step(action, seen)) for action in (way[1], "inventory") for seen in ("", "Got 1 clay")
        ]
        rows.append(await embedded.log_odds(candidates) - await served.log_odds(candidates))
    return np.array(rows)


@needs_vllm
async def test_served_log_odds_equal_the_embedded_ones(tmp_path):
    folder = export_embedded_verdict(model_folder("crafting"), tmp_path / "merged")
    with vllm_server(folder, role="policy", name="verdict") as server:
        offsets = await differences(server.url, str(folder))
    assert np.abs(offsets).max() < 1e-3
