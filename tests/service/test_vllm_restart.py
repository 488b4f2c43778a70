"""A value server that is killed during a run, and a value server in bfloat16."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from amc_agents import AtSteps, amc, parse_critic, text_agent
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.errors import CheckpointError
from amc_agents.models.embedded import EmbeddedChatModel
from tests.service.servers import kill, needs_vllm, vllm_server

pytestmark = pytest.mark.service

TASK = generate_task(7, "train", optimal_steps=(8, 10))


@needs_vllm
def test_a_run_waits_for_a_killed_server(value_folder):
    graph = amc(
        text_agent(EmbeddedChatModel(temperature=0.7)), environment=lambda _: (CraftingWorld(), TASK),
        n_particles=8, resample=AtSteps(3, 6), beta=0.1, horizon=12, seed=1,
    )  # fmt: skip
    given = {"messages": [("user", TASK.instruction)]}
    untouched = graph.run(given, context={"critic": "embedded:crafting"})
    over, points = threading.Event(), []
    with vllm_server(value_folder) as first:
        port = int(first.url.rpartition(":")[2])
        critic = VLLMCritic(first.url, checkpoint=value_folder, retry_for=300)

        def restart():
            with vllm_server(value_folder, port=port):
                over.wait(600)

        again = threading.Thread(target=restart)
        for event in graph.stream(given, context={"critic": critic}, stream_mode="custom"):
            if event["type"] == "amc.weigh":
                points.append(event)
                if len(points) == 1:
                    kill(first)
                    again.start()
            if event["type"] == "amc.run":
                run = event["run"]
    over.set()
    again.join(60)
    assert len(points) >= 3
    # The particles are seeded, and both servers have the same values, so the run is the same.
    assert [point.ancestors.tolist() for point in run.history if point.ancestors is not None] == [
        point.ancestors.tolist() for point in untouched.history if point.ancestors is not None
    ]
    assert [step.action for step in run.best.steps] == [step.action for step in untouched.best.steps]
    assert run.log_evidence == pytest.approx(untouched.log_evidence, abs=1e-3)
    assert run.notes == untouched.notes


@needs_vllm
async def test_bfloat16_gives_nearly_the_same_values(value_folder, trajectories):
    exact = await parse_critic(f"hf:{value_folder}").values(trajectories)
    assert len(exact) >= 200
    with vllm_server(value_folder, extra=("--dtype", "bfloat16")) as server:
        with pytest.raises(CheckpointError, match="less precision"):
            await parse_critic(f"vllm:{server.url}?checkpoint={value_folder}").values(trajectories)
        served = await parse_critic(f"vllm:{server.url}?checkpoint={value_folder}&tolerance=0.02").values(trajectories)
    off = np.abs(served - exact)
    print(f"bfloat16: largest difference {off.max():.4f}, mean {off.mean():.4f}, values from {exact.min():.2f} to "
          f"{exact.max():.2f}")  # fmt: skip
    assert off.max() < 2e-2
    assert np.corrcoef(served, exact)[0, 1] > 0.999
