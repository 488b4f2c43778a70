"""The critic `vllm:` in a run of `amc`."""

import asyncio
import json
import logging

import numpy as np
import pytest

from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.errors import CheckpointError, ConfigurationError, CriticServerError
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from tests.arguments import arguments
from tests.critics.server.scripted_server import Reply
from tests.critics.value.fake_vllm import FakeVLLM, folder, score, trajectory
from tests.population.worlds import number_agent, start, sum_world

__all__ = ["folder"]


def run_with(critic, beta=0.5, **settings):
    graph = amc(
        number_agent(),
        critic,
        **arguments(environment=sum_world, n_particles=5, resample=AtSteps(1, 2), seed=2, beta=beta, **settings),
    )
    return graph.arun(start())


async def test_a_model_for_another_beta_is_refused_after_connecting(folder):
    async with FakeVLLM(root=str(folder)) as server:
        with pytest.raises(ConfigurationError, match=r"beta 0\.5"):
            await run_with(VLLMCritic(server.url), beta=1.0)


async def test_a_run_uses_the_servers_values_and_counts_its_usage(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        run = await run_with(critic)
    assert run.notes == ()
    assert run.usage["critic"] == critic.usage
    assert run.usage["critic"].calls == len(server.asked("/classify")) >= 3
    assert all(np.ptp(point.values) > 0 for point in run.history[:2])


async def test_a_critic_that_fails_ends_the_run(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=0)
        await critic.connect()
        server.faults = [Reply(500, {"error": {"message": "EngineCore encountered an issue"}})]
        with pytest.raises(CriticServerError, match="EngineCore encountered an issue"):
            await run_with(critic)


async def test_on_critic_error_uniform_keeps_the_weights_and_adds_a_note(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=0)
        await critic.connect()
        server.faults = [Reply(500, {"error": {"message": "EngineCore encountered an issue"}})]
        run = await run_with(critic, on_critic_error="uniform")
    (note,) = run.notes
    assert note.startswith("step 1: the critic failed and the weights were kept")
    assert "EngineCore encountered an issue" in note
    assert np.ptp(run.history[0].log_weights) == 0
    assert np.ptp(run.history[1].log_weights) > 0


async def test_on_critic_error_uniform_without_a_server(folder):
    async with FakeVLLM() as server:
        pass
    run = await run_with(VLLMCritic(server.url, checkpoint=folder), on_critic_error="uniform")
    *failures, warning = run.notes
    assert ["is the server started" in note for note in failures] == [True, True, True], (
        "at the start, at step 1 and at the end"
    )
    assert "gave no value at any weighing point" in warning


async def test_on_critic_error_uniform_does_not_ignore_another_model(folder):
    async with FakeVLLM(value=lambda row: score(row, shift=1.0)) as server:
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await run_with(VLLMCritic(server.url, checkpoint=folder), on_critic_error="uniform")


def test_logs_contain_no_key(folder, caplog, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-do-not-show")

    async def main():
        async with FakeVLLM() as server:
            await VLLMCritic(server.url, checkpoint=folder).values([trajectory(1)])

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert caplog.records
    assert "sk-do-not-show" not in json.dumps([record.getMessage() for record in caplog.records])
