"""The methods and commands that a fault can hit: what each does with a server behind the proxy, and what it says."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore

from amc_agents import ActorCritic, AmcSettings, AtSteps, CritiqueRefine, amc, text_agent
from amc_agents.bench.methods import Tuned, amc_hidden
from amc_agents.bench.runner import compare
from amc_agents.bench.tuning import Grid, tune
from amc_agents.critics.classifier import ClassifierCritic
from amc_agents.critics.goal.critic import GoalValueCritic
from amc_agents.critics.goal.embeddings import Embedded, ServerEmbeddings
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.reading import CompletionsReader
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.models.seeding import use_rng
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.training.collecting import amc_rollouts, collect_from
from amc_agents.training.dataset import read_records
from amc_agents.training.score_file import scored_values
from amc_agents.training.scoring import score
from amc_agents.usage import Usage, counting, record
from tests.bench.coins import comparison_of_coins
from tests.critics.goal.test_goal import checkpoint_for
from tests.faults.upstream import CHAT, Talk, digits, embedded, imagined, judged, named
from tests.faults.wire import Wire
from tests.faults.works import TASKS, bits
from tests.lac.lac_agents import Prefers, walker
from tests.pnlc.pnlc_agents import Reaches
from tests.pnlc.pnlc_agents import walker as thinker
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, start, sum_world
from tests.psrl import exploring_agents, test_ids_middleware
from tests.training.toy_trajectories import decided_by_the_first_answer

KEY = "sk-never-show-0123456789abcdef"
N = 3
WORLD = "/step"
"""Path of the world server."""


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
    elsewhere: tuple[str, ...] = ("policy", "world model")
    """Roles whose servers are not behind the proxy."""


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


@asynccontextmanager
async def chat(proxy: Wire, limits: Limits) -> AsyncIterator[ChatOpenAI]:
    """A chat model behind the proxy, without retries of its own. Its connections end with the block."""
    tls = _tls()
    # A request that is cancelled while httpcore closes expired connections leaves some open, and expiry depends on the
    # wall time: none expires here (docs/reliability.md, "What is not covered").
    kept = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(verify=tls, limits=kept) as client:
        async with httpx.AsyncClient(verify=tls, limits=kept) as own:
            try:
                yield ChatOpenAI(
                    model="m", base_url=f"{proxy.url}/v1", api_key=KEY, timeout=limits.timeout, max_retries=0,
                    http_client=client, http_async_client=own,
                )  # fmt: skip
            finally:
                # Calls that a critic gave up go on in their threads; the connections are theirs until they end.
                while any(thread.name.startswith(("amc-judge", "amc-verdict")) for thread in threading.enumerate()):
                    await asyncio.sleep(0.002)


def server(proxy: Wire, limits: Limits) -> ModelServer:
    return ModelServer(proxy.url, timeout=limits.timeout, retry_for=limits.retry_for, api_key=KEY)


@contextmanager
def paid_by(critic: Any) -> Iterator[None]:
    """Record what a critic counts in a block with the surrounding meter: a run that fails reports no usage."""
    try:
        yield
    finally:
        record("critic", getattr(critic, "usage", Usage()))


# --- AMC -------------------------------------------------------------------------------------------------------------


async def population(critic: Any, on_error: str, agent: Any = None) -> Seen:
    """A run of particles that weighs twice."""
    graph = amc(
        agent or number_agent(), critic, beta=0.5, environment=sum_world, n_particles=N, resample=AtSteps(1, 3), seed=3,
        settings=AmcSettings(hide_rewards=True, on_critic_error=on_error, quorum=1), )  # fmt: skip
    with paid_by(critic):
        run = await graph.arun(start())
    await run.aclose()
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
    last: dict[str, Any] = {}
    with counting() as meter:
        async for mode, chunk in agent.astream({"messages": [HumanMessage("Go.")]}, stream_mode=["values", "custom"]):
            if mode == "values":
                last = chunk
            elif chunk.get("type") == record:
                records.append(chunk)
    (decision,) = records
    used = meter.read()  # the handshake too, which the decision's own record leaves out
    judged = {name: decision.get(name) for name in ("action", "chosen", "candidates", "thoughts")}
    said = [message.text for message in last["messages"]]
    return Seen([said, judged], used[role].calls if role in used else 0, tuple(decision["notes"]))


async def lac_with_verdict(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    critic = VerdictCritic(CompletionsReader(server(proxy, limits), tokenize=lambda text: list(map(ord, text))))
    return await lac(critic, on_error)


async def lac_with_top_k(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        return await lac(VerdictCritic(TopKReader(model, max_concurrent=1)), on_error)


async def lac(critic: Any, on_error: str) -> Seen:
    middleware = ActorCritic(critic, k=2, depth=0, reflect=False, seed=1, on_critic_error=on_error)
    return await decided(create_agent(walker("left", "right"), [], middleware=[middleware]), "critic", "lac.decision")


async def lac_imagination(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        middleware = ActorCritic(
            Prefers(left=1.0), k=2, depth=1, reflect=False, seed=1, world_model=model, on_critic_error=on_error
        )
        agent = create_agent(walker("left", "right"), [], middleware=[middleware])
        return await decided(agent, "world model", "lac.decision")


async def pnlc_goals(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        middleware = CritiqueRefine(Reaches(), seed=1, proposer=model, on_critic_error=on_error)
        return await decided(create_agent(thinker(), [], middleware=[middleware]), "world model", "pnlc.decision")


class Trained:
    """The embeddings with which the goal critic was trained: the server's, asked long ago."""

    def __init__(self, spec: str) -> None:
        self.spec = spec

    async def embed(self, texts: Sequence[str]) -> Embedded:
        return Embedded(np.array([embedded(text) for text in texts], dtype=np.float32), Usage())


async def pnlc_with_embeddings(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    embeddings = ServerEmbeddings(server(proxy, limits), "m")
    checkpoint = await checkpoint_for(Trained(embeddings.spec), 8)
    middleware = CritiqueRefine(GoalValueCritic(checkpoint, embeddings=embeddings), seed=1, on_critic_error=on_error)
    return await decided(create_agent(thinker(), [], middleware=[middleware]), "critic", "pnlc.decision")


# --- agents, worlds and commands -------------------------------------------------------------------------------------


class CountedWorld(SumWorld):
    """Counts the open worlds of its own kind."""

    made = open = 0


class ServedWorld:
    """`SumWorld` on a server: every action is a request."""

    def __init__(self, proxy: Wire, limits: Limits) -> None:
        self._proxy, self._limits, self.world = proxy, limits, CountedWorld()

    async def reset(self, task: Any) -> Any:
        return await self.world.reset(task)

    async def step(self, action: str) -> Any:
        async with httpx.AsyncClient(verify=_tls(), timeout=self._limits.timeout) as client:
            async with asyncio.timeout(self._limits.timeout):
                answer = await client.post(f"{self._proxy.url}{WORLD}", json={"action": action})
        answer.raise_for_status()
        return await self.world.step(str(answer.json()["action"]))

    async def fork(self, seed: int) -> ServedWorld:
        copy = ServedWorld(self._proxy, self._limits)
        await copy.world.close()
        copy.world = await self.world.fork(seed)
        return copy

    async def close(self) -> None:
        await self.world.close()


async def amc_world(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    graph = amc(
        number_agent(), ReturnSoFar(), environment=lambda state: (ServedWorld(proxy, limits), TASK), n_particles=N,
        resample=AtSteps(2), seed=3, beta=5.0, settings=AmcSettings(quorum=1),
    )  # fmt: skip
    CountedWorld.open = 0
    try:
        run = await graph.arun(start())
        returns = [trajectory.return_ for trajectory in run.population.trajectories]
        await run.aclose()
        return Seen([returns, run.log_evidence], len(proxy.asked(WORLD)), run.notes)
    finally:
        assert CountedWorld.open == 0, "every world is closed"


async def collected(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        rollouts = amc_rollouts(text_agent(model), SumWorld, N, horizon=4, settings=AmcSettings(quorum=1))
        with TemporaryDirectory() as folder:
            await collect_from(rollouts, [TASK], folder, n_concurrent=1)
            records = read_records(folder)
    facts = [[step.action for step in record.trajectory.steps] for record in records]
    lost = (f"{N - len(records)} trajectories are not stored",) if len(records) < N else ()
    return Seen(facts, len(proxy.asked(CHAT)), lost)


def compared(folder: Path) -> Use:
    async def use(proxy: Wire, limits: Limits, on_error: str) -> Seen:
        critic = VLLMCritic(
            proxy.url, checkpoint=folder, api_key=KEY, timeout=limits.timeout, retry_for=limits.retry_for
        )
        method = amc_hidden(Tuned(steps=(2,), beta=0.5))
        comparison = comparison_of_coins(1, [method], critic=critic, n_particles=N)
        with TemporaryDirectory() as out:
            with paid_by(critic):
                (result,) = await compare(comparison, out, n_concurrent=1)
        return Seen([asdict(result.scores), str(result.particles)], critic.usage.calls, result.notes)

    return use


def tuned(folder: Path) -> Use:
    async def use(proxy: Wire, limits: Limits, on_error: str) -> Seen:
        critic = VLLMCritic(
            proxy.url, checkpoint=folder, api_key=KEY, timeout=limits.timeout, retry_for=limits.retry_for
        )
        comparison = comparison_of_coins(1, [amc_hidden(Tuned(steps=(2,), beta=0.5))], critic=critic, n_particles=N)
        grid = Grid(temperatures=(1.0,), steps=((2,),), betas=(0.5,))
        with TemporaryDirectory() as out, paid_by(critic):
            tuning = await asyncio.to_thread(tune, comparison, out, grid=grid)
        return Seen(str(tuning.tried), critic.usage.calls)

    return use


def scored(folder: Path) -> Use:
    async def use(proxy: Wire, limits: Limits, on_error: str) -> Seen:
        critic = VLLMCritic(
            proxy.url, checkpoint=folder, api_key=KEY, timeout=limits.timeout, retry_for=limits.retry_for
        )
        with TemporaryDirectory() as out:
            data, scores = Path(out) / "data", Path(out) / "scores.parquet"
            await collect_from(bits, TASKS, data)
            await asyncio.to_thread(score, critic, data, scores)
            return Seen([value.tolist() for value in scored_values(scores)], critic.usage.calls)

    return use


async def goal_trained(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    training: Any = import_module("amc_agents.training.goal.train_goal")
    settings = training.GoalTrainingSettings(iterations=1, updates=1, batch_size=8)
    embeddings = ServerEmbeddings(server(proxy, limits), "m")
    with TemporaryDirectory() as out:
        plays = decided_by_the_first_answer(4, 2)
        checkpoint = await training.atrain_goal(plays, Path(out) / "goal", embeddings, settings)
    return Seen(str(checkpoint.metrics), checkpoint.metrics["usage"]["embedding"]["calls"])


async def psrl_roles(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        agent = exploring_agents.an_agent(InMemoryStore(), roles=model, on_update_error="raise")
        return await explored(agent, "posterior sampler", "posterior updater")


async def ids_roles(proxy: Wire, limits: Limits, on_error: str) -> Seen:
    async with chat(proxy, limits) as model:
        agent = test_ids_middleware.an_agent(InMemoryStore(), model, list(map(str, test_ids_middleware.ARMS)))
        return await explored(agent, "regret estimator", "information estimator")


async def explored(agent: Any, *asked: str) -> Seen:
    """One episode of an agent with a middleware whose roles are the chat model."""
    with counting() as meter:
        output = await agent.ainvoke({"messages": [HumanMessage("Earn.")]})
    used = meter.read()
    return Seen([message.text for message in output["messages"]], sum(used[role].calls for role in asked))


def reproducible(model: ScriptedChatModel) -> Talk:
    """What a model says, with the same draws for equal prompts."""

    def talk(messages: Sequence[BaseMessage]) -> str:
        prompt = re.sub(r"> [0-9a-f]{10}$", ">", messages[-1].text, flags=re.MULTILINE)  # without random marks
        with use_rng(np.random.default_rng(zlib.crc32(prompt.encode()))):
            return str(model.respond(messages))

    return talk


def surfaces(folder: Path) -> list[Surface]:
    return [
        Surface("AMC, `vllm:`", "/classify", 1, amc_with_value_model(folder), connecting=("/v1/models",)),
        Surface("AMC, `classify:`", "/classify", 1, amc_with_classifier, connecting=("/v1/models",)),
        Surface("AMC, `judge:`", CHAT, 0, amc_with_judge, talk=judged),
        Surface("AMC, policy", CHAT, 4, amc_policy, elsewhere=()),
        Surface("LAC, `verdict:` (logits)", "/v1/completions", 0, lac_with_verdict, connecting=("/v1/models",)),
        Surface("LAC, `verdict:` (top k)", CHAT, 0, lac_with_top_k),
        Surface("LAC, imagination", CHAT, 0, lac_imagination, talk=imagined, elsewhere=("policy",)),
        Surface("PNLC, goals", CHAT, 0, pnlc_goals, talk=named, elsewhere=("policy",)),
        Surface("PNLC, embeddings", "/v1/embeddings", 1, pnlc_with_embeddings),
        Surface("AMC, world server", WORLD, 4, amc_world),
        Surface("collect, policy", CHAT, 4, collected, elsewhere=()),
        Surface("bench, `vllm:`", "/classify", 1, compared(folder), connecting=("/v1/models",)),
        Surface("tune, `vllm:`", "/classify", 1, tuned(folder), connecting=("/v1/models",)),
        Surface("score, `vllm:`", "/classify", 1, scored(folder), connecting=("/v1/models",)),
        Surface("train goal, embeddings", "/v1/embeddings", 0, goal_trained),
        Surface("PSRL, roles", CHAT, 1, psrl_roles, talk=reproducible(exploring_agents.exact_roles())),
        Surface("IDS, estimators", CHAT, 2, ids_roles, talk=reproducible(test_ids_middleware.exact_roles())),
    ]
