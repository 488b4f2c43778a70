"""The critic `vllm:` on several servers: one server for each task, and others in its place when it fails."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.pooling import SESSION_HEADER, VLLMCritic, session_of
from amc_agents.critics.value.replicas import REST_S, ReplicatedCritic, ranked
from amc_agents.errors import CheckpointError, ConfigurationError, CriticServerError
from amc_agents.types import Task
from tests.critics.server.scripted_server import Reply
from tests.critics.value.fake_vllm import FakeVLLM, expected, folder, score, trajectory

__all__ = ["folder"]


def of_task(number, n=1):
    """A trajectory of another task."""
    return replace(trajectory(n), task=Task(f"task/{number}", f"Goal {number}."))


MANY = [of_task(number) for number in range(40)]
"""So many that every server has some: ports, and with them the servers of tasks, differ from run to run."""


@asynccontextmanager
async def servers(n=3):
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeVLLM()) for _ in range(n)]


def critic_of(servers, folder, **options):
    return ReplicatedCritic([VLLMCritic(s.url, checkpoint=folder, retry_for=0) for s in servers], **options)


def sessions_of(server):
    """The sessions that a server was asked for, in order."""
    return [request.headers[SESSION_HEADER.lower()] for request in server.asked("/classify")[1:]]


async def test_the_requests_of_a_task_go_to_one_server(folder):
    async with servers() as running:
        critic = critic_of(running, folder)
        assert await critic.connect() == "value"
        for steps in range(2):
            trajectories = [of_task(number, steps) for number in range(40)]
            np.testing.assert_allclose(await critic.values(trajectories), expected(folder, trajectories))
        asked = [sessions_of(server) for server in running]
    assert all(asked)
    assert sum(len(set(sessions)) for sessions in asked) == 40  # no task is on two servers
    assert sum(map(len, asked)) == 80
    assert critic.usage.calls == 83
    assert (critic.predicts, critic.beta, critic.charged_as) == ("return", 0.5, "value")


async def test_only_the_tasks_of_a_dead_server_move(folder):
    async with servers() as running:
        critic = critic_of(running, folder)
        before = await critic.values(MANY)
        homes = {session: n for n, server in enumerate(running) for session in sessions_of(server)}
        running[1].kill()
        np.testing.assert_allclose(await critic.values(MANY), before)
        moved = {session: n for n, server in enumerate(running) if n != 1 for session in sessions_of(server)}
    assert {session for session, home in homes.items() if home == 1} == {
        session for session in moved if moved[session] != homes[session]
    }


async def test_a_server_that_failed_is_asked_last_for_a_while(folder):
    now = [0.0]
    async with servers(2) as running:
        critic = critic_of(running, folder, clock=lambda: now[0])
        await critic.values(MANY)
        home = next(server for server in running if session_of(MANY[0]) in sessions_of(server))
        home.faults = [Reply(503)]
        await critic.values(MANY[:1])
        asked = len(home.asked("/classify"))
        await critic.values(MANY[:1])
        assert len(home.asked("/classify")) == asked
        now[0] = REST_S
        await critic.values(MANY[:1])
        assert len(home.asked("/classify")) > asked


async def test_a_refused_request_does_not_move(folder):
    async with servers(2) as running:
        critic = critic_of(running, folder)
        await critic.connect()
        for server in running:
            server.faults = [Reply(400, {"error": {"message": "no such tokens"}})]
        with pytest.raises(CriticServerError, match="no such tokens"):
            await critic.values(MANY[:1])
        assert sorted(len(server.faults) for server in running) == [0, 1]


async def test_unreachable_servers(folder):
    async with servers(2) as running:
        critic = critic_of(running, folder)
        running[0].kill()
        assert await critic.connect() == "value"
        running[1].kill()
        with pytest.raises(CriticServerError):
            await critic.values(MANY)
        with pytest.raises(CriticServerError, match="no connection"):
            await critic_of(running, folder).connect()


async def test_servers_of_different_models_are_refused(folder, tmp_path):
    other = replace(VLLMCritic("http://a", checkpoint=folder).checkpoint, scale=3.0)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    other.save(tmp_path)
    async with servers(2) as running:
        replicas = [VLLMCritic(s.url, checkpoint=path) for s, path in zip(running, (folder, tmp_path), strict=True)]
        with pytest.raises(CheckpointError, match="another checkpoint than the other replicas"):
            await ReplicatedCritic(replicas).connect()
        running[1].value = lambda row: score(row, shift=0.2)
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await critic_of(running, folder).connect()


def test_the_string_of_several_servers(folder):
    critic = parse_critic(f"vllm:http://a:1, http://b:1?checkpoint={folder}&retry_for=8")
    assert isinstance(critic, ReplicatedCritic)
    assert [replica._server._retry_for for replica in critic._replicas] == [4, 4]
    assert isinstance(parse_critic(f"vllm:http://a:1?checkpoint={folder}"), VLLMCritic)
    with pytest.raises(ConfigurationError, match="different URLs"):
        parse_critic(f"vllm:http://a:1,http://a:1?checkpoint={folder}")


async def test_a_router_learns_the_session_of_one_task_only(folder):
    async with FakeVLLM() as router:
        critic = VLLMCritic(router.url, checkpoint=folder)
        await critic.values([of_task(1), of_task(1, 2)])
        await critic.values(MANY)
        one, several = router.asked("/classify")[1:]
    assert one.headers[SESSION_HEADER.lower()] == session_of(MANY[1])
    assert SESSION_HEADER.lower() not in several.headers


def test_rendezvous_hashing_spreads_tasks_evenly_and_moves_only_those_of_a_lost_replica():
    replicas = ["a", "b", "c", "d"]
    orders = [ranked(session_of(of_task(number)), replicas) for number in range(400)]
    firsts = [order[0] for order in orders]
    assert all(60 < firsts.count(index) < 140 for index in range(4))
    seconds = [order[1] for order in orders if order[0] == 0]
    assert all(seconds.count(index) > 15 for index in (1, 2, 3))
    without_d = [ranked(session_of(of_task(number)), replicas[:3])[0] for number in range(400)]
    assert all(new == old for new, old in zip(without_d, firsts, strict=True) if old != 3)


async def test_the_doctor_looks_at_every_server(folder, monkeypatch):
    examined = []
    doctor = import_module("amc_agents.operations.doctor.patient")

    async def served(name, server, model, key_variable):
        examined.append(server.base_url)
        return []

    monkeypatch.setattr(doctor, "served", served)
    await doctor._critic(f"vllm:http://127.0.0.1:1, http://127.0.0.1:2?checkpoint={folder}&retry_for=0")
    assert examined == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
