"""AMC on real servers: policy and value model on vLLM, a LangGraph agent, and the servers' token counts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import httpx
import numpy as np
import pytest
from langchain_openai import ChatOpenAI

from amc_agents import AtSteps, amc, parse_critic, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_tasks, plan
from amc_agents.types import Step, Trajectory

pytestmark = pytest.mark.service

BLOCK = 32
"""Tokens per block of the servers' prefix cache, as `amc serve` sets it on the CPU."""
TASK = next(iter(generate_tasks(1, "train", first_seed=7, optimal_steps=(6, 8))))


async def episode(task) -> Trajectory:
    """Follow the planner's actions and then idle, 20 steps in total."""
    world = CraftingWorld()
    await world.reset(task)
    trajectory = Trajectory(task)
    # Without the last action, which would end the episode.
    for action in [*plan(task.payload.book, task.payload.goal)[:-1], *["inventory"] * 20][:20]:
        trajectory = trajectory.extended(Step(action, (await world.step(action)).observation))
    return trajectory


def counted(url: str) -> dict[str, float]:
    """Return the prompt tokens since the server's start, and those that its cache answered."""
    text = httpx.get(f"{url}/metrics").raise_for_status().text
    names = {"read": "vllm:prompt_tokens_total", "cached": "vllm:prompt_tokens_cached_total"}
    return {
        key: sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))
        for key, name in names.items()
    }


def computed_between(before: dict[str, float], after: dict[str, float]) -> float:
    read, cached = after["read"] - before["read"], after["cached"] - before["cached"]
    assert read > 0, "the server counted no tokens: check the names of its metrics"
    return read - cached


async def test_served_values_equal_those_of_transformers_and_numpy(value_url, value_folder, trajectories):
    assert len(trajectories) >= 200
    served = await parse_critic(f"vllm:{value_url}?model=value&checkpoint={value_folder}").values(trajectories)
    in_process = await parse_critic(f"hf:{value_folder}").values(trajectories)
    in_numpy = await parse_critic("embedded:crafting").values(trajectories)
    assert np.ptp(served) > 0.3
    assert np.abs(served - in_process).max() < 1e-5
    assert np.abs(served - in_numpy).max() < 1e-5


async def test_scoring_an_episode_at_every_step_computes_each_token_about_once(value_url, value_folder):
    critic: Any = parse_critic(f"vllm:{value_url}?checkpoint={value_folder}")
    task = next(iter(generate_tasks(1, "train", first_seed=901, optimal_steps=(8, 10))))
    whole = await episode(task)
    assert len(whole.steps) == 20
    await critic.connect()
    before = counted(value_url)
    for length in range(1, 21):
        await critic.values([whole.prefix(length)])
    final = sum(map(len, critic.checkpoint.encoder(tokenizer(value_folder)).newest(whole)))
    assert computed_between(before, counted(value_url)) <= final + 20 * BLOCK


async def test_the_common_past_of_particles_is_computed_once(value_url, value_folder):
    critic: Any = parse_critic(f"vllm:{value_url}?checkpoint={value_folder}")
    task = next(iter(generate_tasks(1, "train", first_seed=902, optimal_steps=(8, 10))))
    past = (await episode(task)).prefix(12)
    particles = [past.extended(Step(f"get {n} clay", f"Got {n} clay")) for n in range(1, 16)]
    await critic.connect()
    before, calls = counted(value_url), critic.usage.calls
    await critic.values([*particles, particles[3], particles[3]])
    encode = critic.checkpoint.encoder(tokenizer(value_folder)).newest
    shared = sum(map(len, encode(past)))
    distinct = shared + sum(sum(map(len, encode(particle))) - shared for particle in particles)
    assert critic.usage.calls == calls + 1
    assert computed_between(before, counted(value_url)) <= distinct + 15 * BLOCK


def tokenizer(folder):
    from amc_agents.critics.server.served import tokenizer_of

    return tokenizer_of(folder)


async def test_amc_with_everything_served(policy_url, value_url, value_folder):
    policy = ChatOpenAI(
        base_url=f"{policy_url}/v1", model="policy", api_key="none", temperature=0.7, max_completion_tokens=60
    )
    graph = amc(
        text_agent(policy), f"vllm:{value_url}?checkpoint={value_folder}", n_particles=15, resample=AtSteps(4, 8),
        beta=0.1, horizon=20, seed=1, environment=lambda _: (CraftingWorld(), TASK),
    )  # fmt: skip
    run = await graph.arun({"messages": [("user", TASK.instruction)]})
    assert run.best.return_ == 1.0
    # The particles differ, and were resampled.
    assert len({tuple(step.action for step in path.steps) for path in run.population.trajectories}) > 1
    assert any(point.ancestors is not None for point in run.history)
    assert run.usage["policy"].missing == 0
    assert run.usage["policy"].calls >= 15 * 4
    # At most one request per weighing point, and two for the handshake.
    assert run.usage["critic"].calls <= len(run.history) + 2
    assert "value" in run.usage_by_model["critic"]
    # The same graph accepts a critic in this process.
    again = await graph.arun({"messages": [("user", TASK.instruction)]}, context={"critic": "embedded:crafting"})
    assert again.config["critic"] == "embedded:crafting"
    assert again.usage["critic"].calls > 0


def test_the_example(policy_url, value_url, value_folder, repository):
    critic = f"vllm:{value_url}?checkpoint={value_folder}"
    done = subprocess.run(
        [sys.executable, repository / "examples/amc_on_vllm.py", policy_url, critic],
        env={**os.environ, "PYTHONPATH": str(repository)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^best return 1, mean [01]\.\d+$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^critic: [1-9]\d* requests, [1-9]\d* tokens read", done.stdout, re.MULTILINE), done.stdout


def test_the_bench_with_a_served_critic(value_url, value_folder, tmp_path, repository):
    code = "from amc_agents.cli import main; main()"
    flags = ["--tasks", "2", "--particles", "4", "--methods", "amc,amc-hidden", "--workers", "1", "--band", "4", "6"]
    critic = f"vllm:{value_url}?checkpoint={value_folder}"
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", "--out", tmp_path / "out", "--critic", critic, *flags],
        env={**os.environ, "PYTHONPATH": str(repository)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "left out" not in done.stdout
    assert "AMC, rewards hidden" in done.stdout
