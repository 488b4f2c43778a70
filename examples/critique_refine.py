"""PNLC: an agent thinks its step over with a critic's help before anything is done, for tools that cannot be undone.

A script and a log stand here for a chat model and for "goal:folder", which `amc train goal` writes: no key is needed.
"""

from __future__ import annotations

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents.middleware import CritiqueRefine
from amc_agents.testing import ScriptedChatModel

# What the agent thought in earlier runs, and what came of it.
LOG = [("pay", "paid twice")] * 7 + [("pay", "settled")] * 2 + [("ask", "settled")] * 8


class CountsInLog:
    """How often each goal was reached after a thought like this one."""

    async def reach(self, trajectory, thought, goals):
        """`[G]` likelihoods."""
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
    """What a chat model may say: as an agent, of the futures that it sees, and to the critique."""
    text = messages[-1].text
    if "no two alike" in text:
        return "Goal: The invoice is settled." if "to be good" in text else "Goal: It is paid twice."
    if "Decision:" in text:
        warned = float(text.split("bad, likelihood ")[1][:4]) > 0.6
        return "Decision: REFINE\nThought: I ask whether it is open." if warned else "Decision: KEEP"
    if isinstance(messages[-1], ToolMessage):
        return f"Done: {text}"
    name, what = ("ask", {"question": "Is it open?"}) if "I ask" in text else ("pay", {"invoice": "4711"})
    return AIMessage(f"I {name} first.", tool_calls=[{"name": name, "args": what, "id": name}])


thinks = CritiqueRefine(CountsInLog(), n_positive=1, n_negative=1)
agent = create_agent(ScriptedChatModel(respond=respond), [pay, ask], middleware=[thinks])
for mode, chunk in agent.stream({"messages": [("user", "Settle 4711.")]}, stream_mode=["custom", "values"]):
    for one in chunk["thoughts"] if mode == "custom" else ():
        print(f"{one['thought']}\n{one['critique']}".strip())
print(chunk["messages"][-1].text)
