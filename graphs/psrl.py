"""PSRL: each message is a number of pulls of a five-armed bandit. The posterior stays in the server's store.

The package's model draws each hypothesis from the posterior's text, and the other two roles are exact. A model named by
`AMC_MODEL` plays all three roles.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime
from shared.models import OWN_MODEL, chat_model
from shared.tasks import served

from amc_agents import RoleModel, StorePosterior, posterior_sampling_nodes, use_environment
from amc_agents.envs.exploration import ExplorationWorld, bandit_task, episodes
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.psrl.exact import exact_model
from amc_agents.psrl.exact.roles import ExactUpdater, impossible, read_hypothesis
from amc_agents.psrl.nodes import exploring_text_agent
from amc_agents.testing import ScriptedChatModel

TASK = bandit_task(2)
EXACT = exact_model(TASK)


def pull_best(messages: Sequence[BaseMessage]) -> str:
    """Act optimally under the hypothesis in the system prompt."""
    means = read_hypothesis(messages[0].text.split("<hypothesis>\n")[1].split("\n</hypothesis>")[0])
    return "Action: " + str(max(means, key=means.get)).removeprefix("mean of arm ")


if OWN_MODEL:
    roles: dict[str, Any] = {"sampler": chat_model(1.0)}
else:
    roles = {"sampler": RoleModel(EmbeddedChatModel(model="bandit-sampler", temperature=1.0), check=impossible),
             "policy": ScriptedChatModel(respond=pull_best), "updater": ExactUpdater(EXACT)}  # fmt: skip
agent = exploring_text_agent(posterior_sampling_nodes(**roles, prior=EXACT.prior(TASK), world=TASK.instruction))


async def play(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
    said = re.fullmatch(r"[0-9]{1,3}", state["messages"][-1].text.strip())
    pulls = []
    for episode in episodes(TASK, int(said[0]) if said else 1, first=secrets.randbelow(2**32)):
        world = ExplorationWorld()
        await world.reset(episode)
        with use_environment(world):
            output = await agent.ainvoke({"messages": [HumanMessage(TASK.instruction)]})
        pulls.append(output["messages"][-1].text)
    assert runtime.store is not None, "langgraph dev gives every graph a store"
    belief = (await StorePosterior(runtime.store, "amc.posterior").head()).text
    return {"messages": [AIMessage("\n".join(pulls)), AIMessage(belief)]}


graph = served("psrl", play)
