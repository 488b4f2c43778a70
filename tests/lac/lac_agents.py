"""Chat models and critics of known behaviour, and ways to call LAC's model."""

from __future__ import annotations

import asyncio
from itertools import count, cycle

import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents.testing.scripted import ScriptedChatModel

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Prefers:
    """A verdict critic: log-odds by words of the last action; records its calls."""

    def __init__(self, **odds):
        self.odds, self.asked = odds, []

    async def log_odds(self, trajectories):
        self.asked.append(list(trajectories))
        actions = [one.steps[-1].action for one in trajectories]
        return np.array(
            [max((q for word, q in self.odds.items() if word in action), default=0.0) for action in actions]
        )


def in_turn(*said):
    """A model that repeats these answers in turn."""
    endless = cycle(said)
    return ScriptedChatModel(respond=lambda messages: next(endless))


class Watching(BaseCallbackHandler):
    """Records all runs that a tracer sees."""

    run_inline = True

    def __init__(self):
        self.runs, self.parents, self.outputs = {}, {}, {}

    def on_chat_model_start(self, serialized, messages, *, run_id, parent_run_id=None, name=None, **told):
        self.runs[run_id], self.parents[run_id] = (name or serialized["name"], told.get("tags")), parent_run_id

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, name=None, **told):
        self.runs[run_id], self.parents[run_id] = (name, told.get("tags")), parent_run_id

    def on_chain_end(self, outputs, *, run_id, **_):
        self.outputs[self.runs[run_id][0]] = outputs


def ask(model, *messages, sync=False, **given):
    """Return an answer of the sync or the async call."""
    conversation = list(messages) or [HumanMessage("which?")]
    return model.invoke(conversation, **given) if sync else asyncio.run(model.ainvoke(conversation, **given))


@tool
def go(to: str) -> str:
    """Go somewhere."""
    return f"you went {to}"


def calling(to, n):
    return AIMessage("", tool_calls=[{"name": "go", "args": {"to": to}, "id": f"call-{n}"}])


def walker(*ways, rounds=1):
    """A model that calls `go` for `rounds` turns, cycling through the ways, and then reports the result."""
    endless, numbers = cycle(ways), count()

    def respond(messages):
        results = [message for message in messages if isinstance(message, ToolMessage)]
        return f"done: {results[-1].text}" if len(results) >= rounds else calling(next(endless), next(numbers))

    return ScriptedChatModel(respond=respond)
