"""Chat models and goal critics of known behaviour, for PNLC's model, node and middleware."""

from __future__ import annotations

import re
from itertools import count

import numpy as np
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents.testing.scripted import ScriptedChatModel

KEEP = "Diagnosis: It will work.\nDecision: KEEP"
USAGE = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}


def refine(thought):
    return f"Diagnosis: It will fail.\nDecision: REFINE\nThought: {thought}"


def kind_of(messages):
    """Classify a request: "goals", "reply", "estimate", "choice", "action", or "turn"."""
    text = messages[-1].text
    for kind, mark in (
        ("goals", "no two alike"),
        ("reply", "Decision: <KEEP"),
        ("estimate", "its number and its probability"),
        ("choice", "Choice: <its number>"),
        ("action", "Take that step now"),
    ):
        if mark in text:
            return kind
    return "turn"


def goals_for(prompt):
    n = int(re.search(r"name (\d+), no two", prompt)[1])
    word = "rich" if "to be good" in prompt else "poor"
    return "\n".join(f"Goal: You are {word}, way {i}." for i in range(1, n + 1))


def said_to(critique):
    """Go right if a bad outcome is likely, else keep the thought."""
    likelihoods = [float(one) for one in re.findall(r"- bad, likelihood ([\d.]+)", critique)]
    return refine("I go right.") if max(likelihoods) > 0.5 else KEEP


def mind(turn, *, act=None, reply=said_to, seen=None):
    """A chat model: `turn(messages)` is its turn, `reply` its answer to a critique, `act` its turn after a thought."""

    def respond(messages):
        kind = kind_of(messages)
        if seen is not None:
            seen.append((kind, list(messages)))
        answers = {"goals": goals_for, "reply": reply, "choice": lambda _: "Choice: 2",
                   "estimate": lambda _: "1: 0.1\n2: 0.1\n3: 0.9\n4: 0.9"}  # fmt: skip
        if kind in answers:
            return AIMessage(answers[kind](messages[-1].text), usage_metadata=USAGE)
        found = (act if kind == "action" and act else turn)(messages)
        return AIMessage(found, usage_metadata=USAGE) if isinstance(found, str) else found

    return ScriptedChatModel(respond=respond)


@tool
def go(to: str) -> str:
    """Go somewhere."""
    return f"you went {to}"


def walker(thought="I go left.", *, rounds=1, seen=None):
    """A model that goes left, or right after such a thought, and then reports the result."""
    numbers = count()

    def calling(to, content):
        call = {"name": "go", "args": {"to": to}, "id": f"call-{next(numbers)}"}
        return AIMessage(content, tool_calls=[call], usage_metadata=USAGE)

    def turn(messages):
        results = [message for message in messages if isinstance(message, ToolMessage)]
        if len(results) >= rounds:
            return AIMessage(f"done: {results[-1].text}", usage_metadata=USAGE)
        return calling("left", thought)

    def act(messages):
        found = turn(messages)
        if not found.tool_calls:
            return found
        return calling("right" if "I go right." in messages[-1].text else "nowhere", "")

    return mind(turn, act=act, seen=seen)


class Reaches:
    """A goal critic: a likelihood by words of thought and goal, else 0.5; records its calls."""

    def __init__(self, table=None):
        self.table, self.asked = table or {}, []

    async def reach(self, trajectory, thought, goals):
        self.asked.append((trajectory, thought, list(goals)))
        return np.array([self._one(thought, goal) for goal in goals])

    def _one(self, thought, goal):
        return next((p for (said, word), p in self.table.items() if said in thought and word in goal), 0.5)


WARNS = {("left", "rich"): 0.1, ("left", "poor"): 0.9}
"""Going left leads to poverty."""
AGREES = {("left", "rich"): 0.9, ("left", "poor"): 0.1}
