"""PSRL: each run of an agent acts on one hypothesis, drawn from a written posterior that learns from what came of it.

The chat model here plays sampler and updater exactly, so that the example runs without a key. In its place goes your
own: `init_chat_model("provider:model")`. The posterior is text in the store, and yours to read and to edit.
"""

from __future__ import annotations

import asyncio
import json
import re

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore

from amc_agents.envs.exploration import bandit_task
from amc_agents.middleware import PosteriorSampling
from amc_agents.psrl.exact.priors import Beta, Independent
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.testing import ScriptedChatModel, exact_roles_model

TASK = bandit_task(2, n_arms=3, best=0.9, others=0.2)
MEANS = dict(zip(TASK.payload.arms, TASK.payload.means, strict=True))
PRIOR = Independent({f"mean of arm {arm}": Beta() for arm in MEANS})
pulled: list[str] = []


@tool
def pull(arm: str) -> str:
    """Pull an arm."""
    pulled.append(arm)
    return f"Arm {arm} paid {int(pulled.count(arm) * 7 % 10 < 10 * MEANS[arm])}."


def act(messages):
    """An agent that pulls the arm which is best by the hypothesis in its system prompt."""
    if isinstance(messages[-1], ToolMessage):
        return messages[-1].text
    means = json.loads(re.search(r"<hypothesis>\n(.*)\n</hypothesis>", messages[0].text, re.DOTALL)[1])
    best = max(means, key=means.get).removeprefix("mean of arm ")
    return AIMessage("", tool_calls=[{"name": "pull", "args": {"arm": best}, "id": f"pull-{len(pulled)}"}])


def main():
    """Thirty runs. With a SqliteStore in place of the store in memory, a later process goes on where this one ends."""
    explores = PosteriorSampling(exact_roles_model(TASK), prior=PRIOR, world=TASK.instruction, seed=1)
    store = InMemoryStore()
    agent = create_agent(ScriptedChatModel(respond=act), [pull], middleware=[explores], store=store)
    for _ in range(30):
        agent.invoke({"messages": [("user", "Pull an arm.")]})
    print("pulled:", *pulled)
    print(asyncio.run(StorePosterior(store, "amc.posterior").head()).text)


if __name__ == "__main__":
    main()
