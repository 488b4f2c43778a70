"""From an agent that looks better offline to an agent that is switched on: a shadow, then a canary.

Users ask for items, and later it is known whether the answer made the item. This example uses the policy and critic of
the package and needs no key. With so few users both verdicts are "not yet".
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from langgraph.errors import GraphRecursionError

from amc_agents import AmcSettings, AtSteps, amc, canary, shadow, text_agent, use_environment
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.envs.crafting.world import item_id
from amc_agents.models.embedded import EmbeddedChatModel

AGENT = text_agent(EmbeddedChatModel(temperature=0.9))
CRITIC = "embedded:crafting"
SEARCH: Any = {"resample": AtSteps(4, 8), "beta": 0.1, "horizon": 20}


async def serve(graph: Any, users: range) -> None:
    """Answer each user in a world of their own; afterwards, report the outcome to the graph."""
    for user in users:
        task, world = generate_task(user, "examples", optimal_steps=(6, 8)), CraftingWorld()
        await world.reset(task)
        with use_environment(world):
            try:
                call: Any = {"configurable": {"thread_id": f"user {user}"}, "recursion_limit": 40}
                state = await graph.ainvoke({"messages": [("user", task.instruction)]}, call)
                made = state["messages"][-1].text.endswith(item_id(task.payload.goal))
            except GraphRecursionError:
                made = False
        graph.outcome(f"user {user}", float(made))


async def main(folder: str) -> None:
    watched = shadow(AGENT, CRITIC, rate=1.0, folder=f"{folder}/shadow", n_particles=3, seed=0, **SEARCH)
    await serve(watched, range(6))
    await watched.aclose()
    print(f"shadow: {watched.report()}")

    better = amc(AGENT, CRITIC, n_particles=3, settings=AmcSettings(hide_rewards=True), **SEARCH,
                 environment=lambda state: (CraftingWorld(), parse_instruction(state["messages"][0].text)))  # fmt: skip
    live = canary(AGENT, better, share=0.5, folder=f"{folder}/canary", window=0)
    await serve(live, range(6, 16))
    print(f"\ncanary: {live.report()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as records:
        asyncio.run(main(records))
