"""A shop whose refunds are real rows of a SQLite file, and agents that search, pay refunds and answer."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import numpy as np
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from amc_agents.models.seeding import particle_rng
from amc_agents.testing.scripted import ScriptedChatModel


class Ledger:
    """A SQLite file with a row for each effect, which outlives the process (not the machine, for which tests wait)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as db:
            db.execute("create table if not exists effects (name text, args text)")

    def add(self, name: str, **args: object) -> None:
        with self._open() as db:
            db.execute("pragma synchronous = off")
            db.execute("insert into effects values (?, ?)", (name, json.dumps(args)))

    def rows(self, name: str) -> list[dict[str, object]]:
        with self._open() as db:
            found = db.execute("select args from effects where name = ? order by rowid", (name,)).fetchall()
        return [json.loads(args) for (args,) in found]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(os.fspath(self.path), timeout=30)


def shop_tools(ledger: Ledger, *, sync: bool = True) -> dict[str, StructuredTool]:
    """The tools `look` and `refund`, sync or async."""

    def look(item: int) -> str:
        """Look an item up."""
        ledger.add("look", item=item)
        return f"item {item}"

    def refund(amount: int) -> str:
        """Pay a refund."""
        ledger.add("refund", amount=amount)
        return f"paid {amount}"

    async def alook(item: int) -> str:
        return look(item)

    async def arefund(amount: int) -> str:
        return refund(amount)

    functions = ((look, alook), (refund, arefund))
    return {
        function.__name__: StructuredTool.from_function(
            function, None if sync else twin, name=function.__name__, description=function.__doc__ or ""
        )
        for function, twin in functions
    }


EFFECTS = {"look": "read", "refund": "commit"}


def call(name: str, call_id: str, **args: object) -> dict[str, object]:
    return {"name": name, "args": args, "id": call_id}


def results(messages, name=None):
    return [message for message in messages if isinstance(message, ToolMessage) and name in (None, message.name)]


def clerk(messages):
    """Look once or twice, refund a random amount, look again, and answer with a random digit."""
    rng = particle_rng() or np.random.default_rng()
    number = len(messages)
    paid, looked = results(messages, "refund"), results(messages, "look")
    if paid and len(looked) > 2:
        return f"done {rng.integers(10)}"
    if paid or not looked or (len(looked) == 1 and rng.random() < 0.5):
        return AIMessage("", tool_calls=[call("look", f"look-{number}", item=int(rng.integers(10)))])
    return AIMessage("", tool_calls=[call("refund", f"refund-{number}", amount=int(rng.integers(1, 1000)))])


def refunds_in(trajectory):
    """Amounts of the refunds that a critic reads in a trajectory, pending calls included."""
    amounts = []
    for step in trajectory.steps:
        if step.action.startswith(("{", "[")):
            calls = json.loads(step.action)
            amounts += [each["args"]["amount"] for each in (calls if isinstance(calls, list) else [calls])
                        if each["name"] == "refund"]  # fmt: skip
    return amounts


def prefers_large_refunds(trajectories):
    return [sum(refunds_in(trajectory)) / 100 for trajectory in trajectories]


def plain_loop(respond, tools, node=None):
    """An agent of a model node and a `ToolNode`, which runs all calls of a message in one task."""
    model = ScriptedChatModel(respond=respond)
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", node or ToolNode(list(tools)))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile()


def start():
    return {"messages": [HumanMessage("Refund me.")]}
