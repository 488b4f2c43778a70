"""PSRL: each run of an agent acts on a hypothesis drawn from a textual posterior, which is updated from the outcome.

This example needs no API key: its chat model computes the roles of sampler and updater exactly. Replace it with
`init_chat_model("provider:model")`. The posterior is a text in the store, which you can read and edit.
"""

from __future__ import annotations

import asyncio
import json
import re

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore

from amc_agents import PosteriorSampling, StorePosterior
from amc_agents.envs.exploration import bandit_task
from amc_agents.psrl.exact.priors import Beta, Independent
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
    """Pull the best arm according to the hypothesis in the system prompt."""
    if isinstance(messages[-1], ToolMessage):
        return messages[-1].text
    means = json.loads(re.search(r"<hypothesis>\n(.*)\n</hypothesis>", messages[0].text, re.DOTALL)[1])
    best = max(means, key=means.get).removeprefix("mean of arm ")
    return AIMessage("", tool_calls=[{"name": "pull", "args": {"arm": best}, "id": f"pull-{len(pulled)}"}])


def main():
    """Run the agent thirty times. With a SqliteStore, a later process would continue from this posterior."""
    exploration = PosteriorSampling(exact_roles_model(TASK), prior=PRIOR, world=TASK.instruction, seed=1)
    store = InMemoryStore()
    agent = create_agent(ScriptedChatModel(respond=act), [pull], middleware=[exploration], store=store)
    for _ in range(30):
        agent.invoke({"messages": [("user", "Pull an arm.")]})
    print("pulled:", *pulled)
    print(asyncio.run(StorePosterior(store, "amc.posterior").head()).text)


if __name__ == "__main__":
    main()
