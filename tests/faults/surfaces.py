"""The methods and commands that a fault can hit: what each does with a server behind the proxy, and what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from amc_agents import AtSteps, amc, text_agent
from amc_agents.critics.classifier.critic import ClassifierCritic
from amc_agents.critics.goal.critic import GoalValueCritic
from amc_agents.critics.goal.embeddings import ServerEmbeddings
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.server.http import ModelServer
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.reading import CompletionsReader
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.middleware import ActorCritic, CritiqueRefine
from amc_agents.usage import Meter, metering
from tests.critics.goal.test_goal import checkpoint_for
from tests.faults.upstream import CHAT, Talk, digits, judged
from tests.faults.wire import Wire
from tests.lac.lac_agents import walker
from tests.pnlc.pnlc_agents import walker as thinker
from tests.population.worlds import ReturnSoFar, number_agent, start, sum_world

KEY = "sk-never-show-0123456789abcdef"
N = 3


@dataclass(frozen=True)
class Limits:
    """How patient the client is."""

    timeout: float = 30.0
    retry_for: float = 30.0


@dataclass(frozen=True)
class Seen:
    """What a method gave: everything that a fault which was survived may not change."""

    facts: Any
    calls: int
    """Recorded calls of the role whose server is behind the proxy."""
    notes: tuple[str, ...] = ()


Use = Callable[[Wire, Limits, str], Awaitable[Seen]]
"""Wire, limits and `on_critic_error` -> what was seen."""


@dataclass(frozen=True)
class Surface:
    """A method, the server that it asks, and the requests to break."""

    name: str
    path: str
    """Of the requests that are broken."""
    first: int
    """Number of the first request that is broken; those before belong to the handshake."""
    use: Use
    talk: Talk = digits
    connecting: tuple[str, ...] = ()
    """Paths whose requests are no calls of a model."""


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


@asynccontextmanager
async def chat(proxy: Wire, limits: Limits) -> AsyncIterator[ChatOpenAI]:
    """A chat model behind the proxy, without retries of its own. Its connections end with the block."""
    tls = _tls()
    with httpx.Client(verify=tls) as client:
        async with httpx.AsyncClient(verify=tls) as own:
            yield ChatOpenAI(
                model="m", base_url=f"{proxy.url}/v1", api_key=KEY, timeout=limits.timeout, max_retries=0,
                http_client=client, http_async_client=own,
            )  # fmt: skip


def server(proxy: Wire, limits: Limits) -> ModelServer:
    return ModelServer(proxy.url, timeout=limits.timeout, retry_for=limits.retry_for, api_key=KEY)


# --- AMC -------------------------------------------------------------------------------------------------------------


async def population(critic: Any, on_error: str, agent: Any = None) -> Seen:
    """A run of particles that weighs twice."""
    graph = amc(
        agent or number_agent(), critic, beta=0.5, environment=sum_world, n_particles=N, resample=AtSteps(1, 3), seed=3,
        hide_rewards=True, on_critic_error=on_error, quorum=1,
    )  # fmt: skip
    run = await graph.arun(start())
    points = [[point.values.tolist(), point.log_weights.tolist()] for point in run.history]
    actions = [[step.action for step in trajectory.steps] for trajectory in run.population.trajectories]
    critic_calls = run.usage["critic"].calls if "critic" in run.usage else 0
    calls = critic_calls if agent is None else run.usage["policy"].calls
    return Seen([points, actions, run.best_index, run.log_evidence], calls, run.notes)


def amc_with_value_model(folder: Path) -> Use:
    async def use(proxy: Wire, limits: Limits, on_error: str) -> Seen:
        critic = VLLMCritic(
            proxy.url, checkpoint=folder, api_key=KEY, timeout=limits.timeout, retry_for=limits.retry_for
        )
        return await population(critic, on_error)

    return use


async def amc_with_classifier(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    critic = ClassifierCritic(proxy.url, api_key=KEY, timeout=limits.timeout, retry_for=limits.retry_for)
    return await population(critic, on_error)


async def amc_with_judge(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        return await population(JudgeCritic(model, max_concurrent=1), on_error)


async def amc_policy(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        return await population(ReturnSoFar(), on_error, text_agent(model))


# --- decisions -------------------------------------------------------------------------------------------------------


async def decided(agent: Any, role: str, record: str) -> Seen:
    """One turn of an agent with a deciding middleware."""
    records: list[Any] = []
    meter, last = Meter(), {}
    with metering(meter):
        async for mode, chunk in agent.astream({"messages": [HumanMessage("Go.")]}, stream_mode=["values", "custom"]):
            if mode == "values":
                last = chunk
            elif chunk.get("type") == record:
                records.append(chunk)
    (decision,) = records
    used = {**{name: amount.calls for name, amount in meter.read().items()},
            **{name: amount["calls"] for name, amount in decision["usage"].items()}}  # fmt: skip
    judged = {name: decision.get(name) for name in ("action", "chosen", "candidates", "thoughts")}
    said = [message.text for message in last["messages"]]
    return Seen([said, judged], used.get(role, 0), tuple(decision["notes"]))


async def lac_with_verdict(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    critic = VerdictCritic(CompletionsReader(server(proxy, limits), tokenize=lambda text: list(map(ord, text))))
    return await lac(critic, on_error)


async def lac_with_top_k(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        return await lac(VerdictCritic(TopKReader(model, max_concurrent=1)), on_error)


async def lac(critic: Any, on_error: str) -> Seen:
    middleware = ActorCritic(critic, k=2, depth=0, reflect=False, seed=1, on_critic_error=on_error)
    return await decided(create_agent(walker("left", "right"), [], middleware=[middleware]), "critic", "lac.decision")


async def pnlc_with_embeddings(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    made = await checkpoint_for(ServerEmbeddings(server(proxy, limits), "m"), 8)
    embeddings = ServerEmbeddings(server(proxy, limits), "m")
    critic = GoalValueCritic(replace(made, summary="none"), embeddings=embeddings)
    middleware = CritiqueRefine(critic, seed=1, on_critic_error=on_error)
    return await decided(create_agent(thinker(), [], middleware=[middleware]), "critic", "pnlc.decision")


def surfaces(folder: Path) -> list[Surface]:
    return [
        Surface("AMC, `vllm:`", "/classify", 1, amc_with_value_model(folder), connecting=("/v1/models",)),
        Surface("AMC, `classify:`", "/classify", 1, amc_with_classifier, connecting=("/v1/models",)),
        Surface("AMC, `judge:`", CHAT, 0, amc_with_judge, talk=judged),
        Surface("AMC, policy", CHAT, 4, amc_policy),
        Surface("LAC, `verdict:` (logits)", "/v1/completions", 0, lac_with_verdict, connecting=("/v1/models",)),
        Surface("LAC, `verdict:` (top k)", CHAT, 0, lac_with_top_k),
        Surface("PNLC, embeddings", "/v1/embeddings", 2, pnlc_with_embeddings),
    ]
