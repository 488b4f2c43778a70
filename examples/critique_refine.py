"""PNLC: an agent refines its thought with a critic before it acts, for tools whose effects cannot be undone.

This example needs no key. A script replaces the chat model, and a log replaces "goal:folder" from `amc train goal`.
"""

from __future__ import annotations

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import CritiqueRefine
from amc_agents.testing import ScriptedChatModel

# Thoughts of the agent in earlier runs, and their outcomes.
LOG = [("pay", "paid twice")] * 7 + [("pay", "settled")] * 2 + [("ask", "settled")] * 8


class CountsInLog:
    """Estimates how often each goal was reached after similar thoughts."""

    async def reach(self, trajectory, thought, goals):
        """`[G]` probabilities."""
        after = [outcome for kind, outcome in LOG if kind in thought]
        return np.array([(1 + sum(outcome in goal for outcome in after)) / (2 + len(after)) for goal in goals])


@tool
def pay(invoice: str) -> str:
    """Pay an invoice. This cannot be undone."""
    return f"paid {invoice}"


@tool
def ask(question: str) -> str:
    """Ask the sender."""
    return "It was paid last week."


def respond(messages):
    """The answers of a chat model: as an agent, when asked for goals, and to the critique."""
    text = messages[-1].text
    if "no two alike" in text:
        return "Goal: The invoice is settled." if "to be good" in text else "Goal: It is paid twice."
    if "Decision:" in text:
        warned = float(text.split("bad, likelihood ")[1][:4]) > 0.6
        return "Decision: REFINE\nThought: I ask whether it is open." if warned else "Decision: KEEP"
    if isinstance(messages[-1], ToolMessage):
        return f"Done: {text}"
    name, arguments = ("ask", {"question": "Is it open?"}) if "I ask" in text else ("pay", {"invoice": "4711"})
    return AIMessage(f"I {name} first.", tool_calls=[{"name": name, "args": arguments, "id": name}])


thinks = CritiqueRefine(CountsInLog(), n_positive=1, n_negative=1)
agent = create_agent(ScriptedChatModel(respond=respond), [pay, ask], middleware=[thinks])
for mode, chunk in agent.stream({"messages": [("user", "Settle 4711.")]}, stream_mode=["custom", "values"]):
    for thought in chunk["thoughts"] if mode == "custom" else ():
        print(f"{thought['thought']}\n{thought['critique']}".strip())
print(chunk["messages"][-1].text)
