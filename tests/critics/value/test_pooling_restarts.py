"""The critic `vllm:` while its server restarts, changes, or fails in part."""

import asyncio
import itertools

import numpy as np
import pytest

from amc_agents.critics.value.pooling import CONTROL_TOKENS, VLLMCritic
from amc_agents.errors import CheckpointError, CriticServerError
from tests.critics.server.scripted_server import HANG, Reply
from tests.critics.value.fake_vllm import FakeVLLM, expected, folder, score, trajectory

__all__ = ["folder"]


async def test_a_server_killed_in_the_middle_of_a_run_and_restarted(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=20)
        await critic.connect()
        server.faults = [HANG]
        waiting = asyncio.create_task(critic.values([trajectory(1)]))
        while len(server.asked("/classify")) < 2:
            await asyncio.sleep(0.01)
        server.kill()
        await server.start()
        np.testing.assert_allclose(await waiting, expected(folder, [trajectory(1)]))
    assert len(server.asked("/v1/models")) == 2


@pytest.mark.parametrize("names", [["value"], ["renamed"]])
async def test_a_restarted_server_may_have_another_limit_or_model_name(folder, names):
    async with FakeVLLM(limit=400) as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.values([trajectory(40)])
        server.kill()
        server.limit, server.names = 200, names
        await server.start()
        np.testing.assert_allclose(await critic.values([trajectory(40)]), expected(folder, [trajectory(40)], 200))


async def test_a_refusal_by_the_same_server_is_not_repeated(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.connect()
        server.faults = [Reply(400, {"error": {"message": "no such tokens"}})]
        with pytest.raises(CriticServerError, match="no such tokens"):
            await critic.values([trajectory(1)])
    # Two handshakes, with the request between them.
    assert len(server.asked("/classify")) == 3


@pytest.mark.parametrize("seen", [True, False])
async def test_another_model_after_the_restart_is_an_error(folder, seen):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=20)
        await critic.values([trajectory(1)])
        server.kill()
        server.value = lambda row: score(row, shift=0.2)
        waiting = None
        if seen:
            waiting = asyncio.create_task(critic.values([trajectory(2)]))
            await asyncio.sleep(0.3)
        # If not seen, the restart happens between two calls, and no connection is lost.
        await server.start()
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await (waiting or critic.values([trajectory(2)]))


async def test_a_model_of_another_name_after_the_restart_is_an_error(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, model="value", checkpoint=folder)
        await critic.values([trajectory(1)])
        server.names = ["other"]
        with pytest.raises(CriticServerError, match="model 'value' is not on this server, which serves other"):
            await critic.values([trajectory(2)])


@pytest.mark.thorough
@pytest.mark.parametrize("status", [500, 503])
async def test_half_of_the_requests_may_fail(folder, status):
    """With one dead server of two behind a load balancer, every second attempt succeeds."""
    async with FakeVLLM() as server:
        right, count = server.respond, itertools.count()
        server.respond = lambda request: Reply(status) if next(count) % 2 == 0 else right(request)
        critic = VLLMCritic(server.url, checkpoint=folder)
        for n in range(1, 4):
            np.testing.assert_allclose(await critic.values([trajectory(n)]), expected(folder, [trajectory(n)]))


async def test_answers_of_an_interrupted_call_count_only_after_a_new_handshake(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.connect()
        server.faults = [Reply(503)]
        # The scores differ from the checkpoint's, but not for the control prompt.
        server.value = lambda row: score(row, shift=0.0 if len(row) <= CONTROL_TOKENS else 0.2)
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await critic.values([trajectory(1)])


async def test_a_server_that_changes_with_every_request_is_an_error(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        shifts = iter(range(1000))

        def value(row):
            return score(row) if len(row) > CONTROL_TOKENS else score(row, shift=next(shifts))

        server.value = value
        with pytest.raises(CriticServerError, match="servers of different models"):
            await critic.values([trajectory(2)])
