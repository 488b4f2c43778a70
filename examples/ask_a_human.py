"""A human approves what an agent does: the particles draft offers, and only the selected one's question is asked.

This example needs no key: random drafts replace the chat model.
"""

from __future__ import annotations

import re

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from amc_agents import amc, effect
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel


@tool
@effect("commit")
def send_offer(price: int) -> str:
    """Send an offer to the customer. This happens in reality, once."""
    print(f"sent: {price}")
    return f"The offer of {price} is sent."


def respond(messages):
    """Offer a random price."""
    if len(messages) > 2:
        return "The customer has the offer."
    args = {"price": int(particle_rng().integers(50, 150))}
    return AIMessage("", tool_calls=[{"name": "send_offer", "args": args, "id": "call-1"}])


def near_100(trajectories):
    """A critic: a price near 100 is good. It reads the call that a particle is about to make."""
    prices = [re.findall(r'"price": (\d+)', path.steps[0].action if path.steps else "") for path in trajectories]
    return [-abs(int(found[0]) - 100) if found else -100 for found in prices]


if __name__ == "__main__":
    agent = create_agent(ScriptedChatModel(respond=respond), [send_offer],
                         middleware=[HumanInTheLoopMiddleware(interrupt_on={"send_offer": True})])  # fmt: skip
    search = amc(agent, near_100, n_particles=8, beta=10.0, seed=0, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "offer"}}
    asked = search.invoke({"messages": [("user", "Make an offer.")]}, config)
    for question in asked["__interrupt__"]:
        print("asked:", question.value)
    answer = search.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    print(answer["messages"][-1].text)
