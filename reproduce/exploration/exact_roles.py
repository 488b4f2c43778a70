"""Compare LLM-PSRL and LLM-IDS, with a chat model that plays each role exactly, with the classic agents.

    python reproduce/exploration/exact_roles.py --trials 300 [--only psrl:bandit ids:combination-lock] [--direct]

With common random numbers, all actions must be equal. With independent seeds, the final regrets must agree within 4
standard errors of their difference. --direct bypasses LangChain, which is several times faster.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.messages import HumanMessage
from typing_extensions import override

from amc_agents.envs.registry import WorldSpec, world
from amc_agents.psrl.ids import ChatEstimator
from amc_agents.psrl.posterior.memory import InMemoryPosterior
from amc_agents.psrl.roles import ChatSampler, ChatUpdater
from amc_agents.runtime.inner_calls import role_answers
from amc_agents.types import FloatArray, Task
from amc_agents_exploration.episodic import EpisodicAgent, LlmInformationDirected, LlmPosteriorSampling, play_episode
from amc_agents_exploration.exact import ClassicInformationDirected, ClassicPosteriorSampling, exact_model
from amc_agents_exploration.policy import ChatPolicy
from amc_agents_exploration.testing import exact_roles_model
from amc_agents_exploration.worlds import ExplorationWorld, episodes

WORLDS = (
    ("psrl", "bandit"),
    ("psrl", "combination-lock"),
    ("psrl", "riverswim"),
    ("ids", "informative-bandit"),
    ("ids", "combination-lock"),
)


class SpawnedPosteriorSampling(ClassicPosteriorSampling[Any]):
    """Classic PSRL with the random stream of an episode's first request, the sampler's."""

    @override
    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        await super().begin(task, rng.spawn(1)[0])


def classic(method: str, task: Task, direct: bool) -> EpisodicAgent:
    """Build the classic agent."""
    psrl = ClassicPosteriorSampling if direct else SpawnedPosteriorSampling
    model: Any = exact_model(task)
    return psrl(model) if method == "psrl" else ClassicInformationDirected(model)


def of_roles(method: str, task: Task, direct: bool) -> EpisodicAgent:
    """Build the agent whose roles are all played by the chat model."""
    memory = InMemoryPosterior(str(exact_model(task).prior(task)))
    model = exact_roles_model(task)

    async def respond(prompts: Sequence[str]) -> list[str]:
        return [str(model.respond([HumanMessage(prompt)])) for prompt in prompts]

    answers = respond if direct else role_answers(model, "role")
    if method == "ids":
        return LlmInformationDirected(memory, ChatEstimator(answers, answers), ChatUpdater(answers))
    return LlmPosteriorSampling(memory, ChatSampler(answers), ChatPolicy(answers), ChatUpdater(answers))


async def trial(spec: WorldSpec, task: Task, agent: EpisodicAgent, seed: int) -> tuple[list[list[str]], float]:
    """Play a trial; return the actions of each episode, and the regret."""
    actions, regret = [], 0.0
    for number, episode in enumerate(episodes(task, spec.n_episodes)):
        rng = np.random.default_rng([seed, number])
        played = await play_episode(ExplorationWorld(), episode, agent, rng, horizon=spec.horizon)
        actions.append([step.action for step in played.steps])
        regret += task.payload.regret(played)
    return actions, regret


async def compare(method: str, name: str, n_trials: int, direct: bool) -> tuple[int, FloatArray]:
    """Return the number of trials with equal actions, and regrets: classic, roles, roles on independent seeds."""
    spec = world(name)
    same, regrets = 0, []
    tasks = list(spec.tasks(2 * n_trials, "test", 0))
    for seed, (task, other) in enumerate(zip(tasks[:n_trials], tasks[n_trials:], strict=True)):
        left = await trial(spec, task, classic(method, task, direct), seed)
        right = await trial(spec, task, of_roles(method, task, direct), seed)
        independent = await trial(spec, other, of_roles(method, other, direct), 10**6 + seed)
        same += left[0] == right[0]
        regrets.append((left[1], right[1], independent[1]))
    return same, np.array(regrets)


async def main(n_trials: int, only: Sequence[str], direct: bool) -> None:
    """Print a line for each method and world; exit with 1 if a comparison fails."""
    failed = False
    for method, name in WORLDS:
        if only and f"{method}:{name}" not in only:
            continue
        start = time.monotonic()
        same, regrets = await compare(method, name, n_trials, direct)
        exact, _, independent = regrets.T
        error = np.sqrt((exact.var(ddof=1) + independent.var(ddof=1)) / n_trials)
        distance = (
            abs(exact.mean() - independent.mean()) / error if error else float(exact.mean() != independent.mean())
        )
        failed |= bool(same < n_trials or distance > 4)
        print(
            f"{method:5} {name:20} same actions in {same}/{n_trials} trials; regret {exact.mean():.3f} (classic) and "
            f"{independent.mean():.3f} (roles, other seeds): {distance:.2f} standard errors of {error:.3f}; "
            f"{time.monotonic() - start:.0f} s",
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
    options = parser.parse_args()
    asyncio.run(main(options.trials, options.only, options.direct))
