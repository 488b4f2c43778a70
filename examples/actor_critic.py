"""LAC: an agent chooses each action among K candidates, by their frequency and by a critic.

This example uses the policy and critic of the package and needs no key. Replace them by your own:
`init_chat_model("provider:model")`, and "verdict:http://host:8000?model=..." or any other critic string.
"""

from __future__ import annotations

import asyncio

from langgraph.graph import END, START, StateGraph

from amc_agents import actor_critic_node, use_environment
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.text_agent import TextAgentState, world_node

TASK = generate_task(7, "examples", optimal_steps=(6, 8))


def after_world(state):
    """Continue to the end of the episode, for at most 20 steps."""
    return END if state["done"] or len(state["messages"]) > 40 else "model"


def make_agent():
    """A loop of model and world, with LAC as the model."""
    graph = StateGraph(TextAgentState)
    graph.add_node("model", actor_critic_node(EmbeddedChatModel(), "embedded:crafting", k=5, greedy=True, seed=3))
    graph.add_node("tools", world_node())
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_conditional_edges("tools", after_world, ["model", END])
    return graph.compile()


async def play():
    """Play an episode and print each decision."""
    world = CraftingWorld()
    await world.reset(TASK)
    with use_environment(world):
        given = {"messages": [("user", TASK.instruction)], "done": False}
        async for mode, chunk in make_agent().astream(given, stream_mode=["custom", "values"]):
            if mode == "custom":
                explain(chunk)
    print(chunk["messages"][-1].text)


def explain(decision):
    """Print a line per candidate, with the chosen action marked."""
    for i, candidate in enumerate(decision["candidates"]):
        mark = ">" if i == decision["chosen"] else " "
        action, q = candidate["action"], candidate["q"]
        print(f"{mark} {action:45} n={candidate['n']}  Q={q:+.2f}  p={candidate['probability']:.2f}")
    print()


if __name__ == "__main__":
    asyncio.run(play())
