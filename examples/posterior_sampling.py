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
from amc_agents.psrl.posterior.priors import Beta, Independent
from amc_agents.testing import ScriptedChatModel, exact_roles_model

MEANS = {"H": 0.2, "A": 0.9, "L": 0.2}
RULES = "Each of the arms H, A and L pays 1 with a fixed probability of its own. Earn as much as you can."
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


def count(posterior, step):
    """Update the belief about an arm by Bayes' rule."""
    arm, paid = re.fullmatch(r"Arm (.) paid ([01])\.", step.observation).groups()
    return posterior.observed(f"mean of arm {arm}", int(paid))


def main():
    """Run the agent thirty times. With a SqliteStore, a later process would continue from this posterior."""
    exploration = PosteriorSampling(exact_roles_model(count), prior=PRIOR, world=RULES, seed=1)
    store = InMemoryStore()
    agent = create_agent(ScriptedChatModel(respond=act), [pull], middleware=[exploration], store=store)
    for _ in range(30):
        agent.invoke({"messages": [("user", "Pull an arm.")]})
    print("pulled:", *pulled)
    print(asyncio.run(StorePosterior(store, "amc.posterior").head()).text)


if __name__ == "__main__":
    main()
