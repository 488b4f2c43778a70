from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amc_agents import Never, amc, text_agent
from amc_agents.critics.value.local import export_embedded_value
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.operations.serve.vllm_command import VARIABLE
from amc_agents.types import Trajectory
from tests.service.servers import START_SECONDS, new_server

RUNNING = {
    "policy": "AMC_TEST_POLICY_URL",
    "value": "AMC_TEST_VALUE_URL",
    "embeddings": "AMC_TEST_EMBEDDINGS_URL",
}


@pytest.fixture(scope="session")
def value_folder(tmp_path_factory) -> Path:
    """The shipped value model, merged: the server of `value_url` serves it, and `hf:` loads it."""
    return export_embedded_value(model_folder("crafting"), tmp_path_factory.mktemp("value") / "crafting-value")


@pytest.fixture(scope="session")
def _urls(request, tmp_path_factory) -> Iterator[dict[str, str]]:
    """URLs of the servers that the collected tests need; new servers are started concurrently."""
    fixtures = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    urls = {role: os.environ[variable] for role, variable in RUNNING.items() if variable in os.environ}
    roles = [role for role in RUNNING if f"{role}_url" in fixtures and role not in urls]
    if roles and VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} is not set: expected a Python interpreter with vLLM")
    models = {"policy": "crafting", "value": request.getfixturevalue("value_folder"), "embeddings": "crafting"}
    logs = tmp_path_factory.mktemp("logs")
    servers = {role: new_server(models[role], role=role, log=logs / role) for role in roles}
    try:
        for server in servers.values():
            server.start()
        for server in servers.values():
            server.wait_until_healthy(START_SECONDS)
        yield urls | {role: server.url for role, server in servers.items()}
    finally:
        for server in servers.values():
            server.close()


@pytest.fixture(scope="session")
def policy_url(_urls) -> str:
    """A vLLM server of the shipped policy, named "policy"."""
    return _urls["policy"]


@pytest.fixture(scope="session")
def value_url(_urls) -> str:
    """A vLLM server of the shipped value model, named "value"."""
    return _urls["value"]


@pytest.fixture(scope="session")
def embeddings_url(_urls) -> str:
    """A vLLM server of the shipped policy as an embedding model, named "embeddings"."""
    return _urls["embeddings"]


@pytest.fixture(scope="session")
def trajectories() -> list[Trajectory]:
    """210 trajectories of the shipped policy, each up to a random step."""
    agent, rng = text_agent(EmbeddedChatModel(temperature=1.0)), np.random.default_rng(0)
    whole = []
    for task in generate_tasks(14, "train", first_seed=100, optimal_steps=(4, 12)):
        world_of: Any = partial(world_and, task)
        graph = amc(agent, n_particles=15, resample=Never(), horizon=20, seed=1, environment=world_of)
        whole += graph.run({"messages": [("user", task.instruction)]}).population.trajectories
    return [trajectory.prefix(int(rng.integers(0, len(trajectory.steps) + 1))) for trajectory in whole]


def world_and(task, _):
    return CraftingWorld(), task
