"""The goal critic with a real embedding server."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from amc_agents.critics.goal.embeddings import as_embeddings
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CheckpointError, CriticServerError
from amc_agents.types import Step, Task, Trajectory

pytestmark = pytest.mark.service

TEXTS = ["Got 1 wheat", "Got 2 wheat", "Could not find enough items to craft minecraft:oak_panel"]


@pytest.fixture
def spec(embeddings_url) -> str:
    """The embeddings string of the server's first model."""
    model = httpx.get(f"{embeddings_url}/v1/models").json()["data"][0]["id"]
    return f"vllm:{embeddings_url}?model={model}"


async def test_vectors_do_not_depend_on_the_batch(spec):
    embeddings = as_embeddings(spec)
    together, usage = await embeddings.embed(TEXTS)
    alone = np.concatenate([(await embeddings.embed([text])).vectors for text in TEXTS])
    assert usage.calls == 1
    assert usage.input_tokens > 0
    assert together.shape[0] == 3
    assert np.abs(together - alone).max() < 1e-2
    assert together[0] @ together[1] > together[0] @ together[2]


async def test_errors_of_the_server_are_reported(spec):
    with pytest.raises(CriticServerError, match="HTTP 400"):
        await as_embeddings(spec).embed(["wheat " * 100_000])
    with pytest.raises(CriticServerError, match="HTTP 404"):
        await as_embeddings(spec.partition("?")[0] + "?model=unknown").embed(["wheat"])


async def test_a_critic_trained_with_the_server_recognises_it(spec, tmp_path):
    pytest.importorskip("torch")
    from amc_agents.training.goal.train_goal import atrain_goal
    from amc_agents.training.settings import GoalTrainingSettings

    items = ["wheat", "shell", "petal", "seed", "nut", "glue"]
    trajectories = [
        Trajectory(
            Task(f"t{number}", "Get something."),
            (Step(f"get 1 {item}", f"Got 1 {item}", f"I need {item}"), Step("inventory", f"[{item}] (1)")),
            done=True,
        )
        for number, item in enumerate(items * 5)
    ]
    settings = GoalTrainingSettings(iterations=40, learning_rate=2e-3)
    checkpoint = await atrain_goal(trajectories, tmp_path / "goal", spec, settings, cache=tmp_path / "cache.sqlite")
    assert checkpoint.embeddings == spec
    assert checkpoint.metrics["usage"]["embedding"]["input_tokens"] > 0
    critic: Any = parse_critic(f"goal:{tmp_path / 'goal'}")
    start = Trajectory(Task("new", "Get something."))
    reached = await critic.reach(start, "I need petal", [f"Got 1 {item}" for item in items])
    assert np.all((reached >= 0) & (reached <= 1))
    assert reached.argmax() == items.index("petal")
    other: Any = parse_critic(f"goal:{tmp_path / 'goal'}?embeddings=hashed:7")
    with pytest.raises(CheckpointError, match="dimensions"):
        await other.reach(start, "x", ["y"])
