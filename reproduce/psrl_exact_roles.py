"""LLM-PSRL and LLM-IDS with a chat model that plays each role exactly, against the classic agents.

    python reproduce/psrl_exact_roles.py --trials 300 [--only psrl:bandit ids:combination-lock] [--direct]

Part 1: on common random numbers every action has to be the same. Part 2: on independent seeds the final regrets have to
agree within 4 standard errors of their difference. --direct leaves LangChain out: the model's script answers at once,
which is several times faster.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.messages import HumanMessage

from amc_agents.envs.exploration import ExplorationWorld, episodes
from amc_agents.envs.registry import WorldSpec, world
from amc_agents.psrl.episodes import EpisodicAgent, play_episode
from amc_agents.psrl.estimates import ChatEstimator
from amc_agents.psrl.exact import ClassicInformationDirected, ClassicPosteriorSampling, exact_model
from amc_agents.psrl.ids import LlmInformationDirected
from amc_agents.psrl.posterior.updates import InMemoryPosterior
from amc_agents.psrl.posterior_sampling import LlmPosteriorSampling
from amc_agents.psrl.roles import ChatPolicy, ChatSampler, ChatUpdater
from amc_agents.runtime.inner_calls import role_answers
from amc_agents.testing.exact_roles import exact_roles_model
from amc_agents.types import FloatArray, Task

WORLDS = (
    ("psrl", "bandit"),
    ("psrl", "combination-lock"),
    ("psrl", "riverswim"),
    ("ids", "informative-bandit"),
    ("ids", "combination-lock"),
)


class OnSpawnedLuck(ClassicPosteriorSampling[Any]):
    """Classic PSRL with the stream that the first request of an episode has: the sampler's."""

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """As the classic agent."""
        await super().begin(task, rng.spawn(1)[0])


def classic(method: str, task: Task, direct: bool) -> EpisodicAgent:
    """The classic agent."""
    psrl = ClassicPosteriorSampling if direct else OnSpawnedLuck
    model: Any = exact_model(task)
    return psrl(model) if method == "psrl" else ClassicInformationDirected(model)


def of_roles(method: str, task: Task, direct: bool) -> EpisodicAgent:
    """The agent whose every role is the chat model."""
    memory = InMemoryPosterior(str(exact_model(task).prior(task)))
    model = exact_roles_model(task)

    async def at_once(prompts: Sequence[str]) -> list[str]:
        return [str(model.respond([HumanMessage(prompt)])) for prompt in prompts]

    answers = at_once if direct else role_answers(model, "role")
    if method == "ids":
        return LlmInformationDirected(memory, ChatEstimator(answers, answers), ChatUpdater(answers))
    return LlmPosteriorSampling(memory, ChatSampler(answers), ChatPolicy(answers), ChatUpdater(answers))


async def trial(found: WorldSpec, task: Task, agent: EpisodicAgent, seed: int) -> tuple[list[list[str]], float]:
    """The actions of each episode, and the trial's regret."""
    actions, regret = [], 0.0
    for number, episode in enumerate(episodes(task, found.n_episodes)):
        rng = np.random.default_rng([seed, number])
        played = await play_episode(ExplorationWorld(), episode, agent, rng, horizon=found.horizon)
        actions.append([step.action for step in played.steps])
        regret += task.payload.regret(played)
    return actions, regret


async def compare(method: str, name: str, n_trials: int, direct: bool) -> tuple[int, FloatArray]:
    """How many trials had the same actions, and the regrets: classic, of roles, of roles on seeds of their own."""
    found = world(name)
    same, regrets = 0, []
    tasks = list(found.tasks(2 * n_trials, "test", 0))
    for seed, (task, other) in enumerate(zip(tasks[:n_trials], tasks[n_trials:], strict=True)):
        left = await trial(found, task, classic(method, task, direct), seed)
        right = await trial(found, task, of_roles(method, task, direct), seed)
        apart = await trial(found, other, of_roles(method, other, direct), 10**6 + seed)
        same += left[0] == right[0]
        regrets.append((left[1], right[1], apart[1]))
    return same, np.array(regrets)


async def main(n_trials: int, only: Sequence[str], direct: bool) -> None:
    """Prints one line for each method and world."""
    failed = False
    for method, name in WORLDS:
        if only and f"{method}:{name}" not in only:
            continue
        began = time.monotonic()
        same, regrets = await compare(method, name, n_trials, direct)
        own, _, apart = regrets.T
        error = np.sqrt((own.var(ddof=1) + apart.var(ddof=1)) / n_trials)
        distance = abs(own.mean() - apart.mean()) / error if error else float(own.mean() != apart.mean())
        failed |= bool(same < n_trials or distance > 4)
        print(
            f"{method:5} {name:20} same actions in {same}/{n_trials} trials; regret {own.mean():.3f} (classic) and "
            f"{apart.mean():.3f} (roles, other seeds): {distance:.2f} standard errors of {error:.3f}; "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    raise SystemExit(int(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument(
        "--only", nargs="+", default=(), choices=[f"{a}:{b}" for a, b in WORLDS], metavar="METHOD:WORLD"
    )
    parser.add_argument("--direct", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.trials, given.only, given.direct))
