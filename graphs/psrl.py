"""PSRL: each message is a number of pulls of a five-armed bandit. The posterior stays in the server's store.

Without a model, the three roles are computed exactly. A model named by `AMC_MODEL` plays all three.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime
from shared.models import OWN_MODEL, chat_model
from shared.tasks import served

from amc_agents import StorePosterior, Task, TimeStep, posterior_sampling_nodes, use_environment
from amc_agents.psrl.nodes import exploring_text_agent
from amc_agents.psrl.posterior.priors import Beta, Independent, read_hypothesis
from amc_agents.testing import ScriptedChatModel, exact_roles_model
from amc_agents.types import Step

CHANCES = {"H": 0.4, "A": 0.6, "L": 0.4, "P": 0.4, "J": 0.4}
RULES = f"""There are five slot machine arms: {", ".join(CHANCES)}. Each pays 1 or 0, with a fixed probability.
You make one pull in each episode. Earn as much as you can over all episodes. An action is the name of an arm."""
PRIOR = Independent({f"mean of arm {arm}": Beta() for arm in CHANCES})


class Bandit:
    """An episode: one pull."""

    async def reset(self, task: Task) -> TimeStep:
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        if action not in CHANCES:
            return TimeStep.termination("That is not the name of an arm: the pull is lost.", 0.0)
        paid = int(np.random.default_rng().random() < CHANCES[action])
        return TimeStep.termination(f"Arm {action} paid {paid}.", paid)

    async def fork(self, seed: int) -> Bandit:
        return Bandit()

    async def close(self) -> None: ...


def count(posterior: Independent, step: Step) -> Independent:
    """Count what an arm paid."""
    pull = re.fullmatch(r"Arm (.) paid ([01])\.", step.observation)
    return posterior.observed(f"mean of arm {pull[1]}", int(pull[2])) if pull else posterior


def best_arm(means: Mapping[str, float]) -> str:
    return max(means, key=lambda mean: means[mean]).removeprefix("mean of arm ")


def pull_best(messages: Sequence[BaseMessage]) -> str:
    """Act optimally under the hypothesis in the system prompt."""
    hypothesis = messages[0].text.split("<hypothesis>\n")[1].split("\n</hypothesis>")[0]
    return f"Action: {best_arm(read_hypothesis(hypothesis))}"


roles: dict[str, Any] = {"sampler": chat_model(1.0)}
if not OWN_MODEL:
    roles = {"sampler": exact_roles_model(count), "policy": ScriptedChatModel(respond=pull_best)}
agent = exploring_text_agent(posterior_sampling_nodes(**roles, prior=PRIOR, world=RULES))


async def play(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
    said = re.fullmatch(r"[0-9]{1,3}", state["messages"][-1].text.strip())
    pulls = []
    for _ in range(int(said[0]) if said else 1):
        with use_environment(Bandit()):
            output = await agent.ainvoke({"messages": [HumanMessage(RULES)]})
        pulls.append(output["messages"][-1].text)
    assert runtime.store is not None, "langgraph dev gives every graph a store"
    belief = (await StorePosterior(runtime.store, "amc.posterior").head()).text
    return {"messages": [AIMessage("\n".join(pulls)), AIMessage(belief)]}


graph = served("psrl", play)
