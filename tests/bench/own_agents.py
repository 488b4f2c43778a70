"""Agents of a user, as modules on disk: an agent says bits until it stops, and scores as many ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

_numbers = itertools.count()

MODULE = '''
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import effect
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

horizon = 6
paid = []


@tool
@effect("read")
def say(bit: int) -> str:
    """Say a bit."""
    return f"said {bit}"


@tool
@effect("commit")
def pay() -> str:
    """Act in reality."""
    paid.append(1)
    return "paid"


def make_agent(temperature=0.8):
    def respond(messages):
        number = sum(isinstance(message, ToolMessage) for message in messages)
        if number == 3:
            return AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "p"}])
        bit = int(particle_rng().random() < 0.5) if temperature else 1
        return AIMessage("", tool_calls=[{"name": "say", "args": {"bit": bit}, "id": f"c{number}"}])

    return create_agent(ScriptedChatModel(respond=respond), [say, pay])


def score(state, task):
    if task.payload.get("trouble") == "score":
        raise ValueError("no score for you")
    ones = sum(message.text == "said 1" for message in state["messages"] if isinstance(message, ToolMessage))
    return float(ones >= task.payload["ones"])


class Share:
    """Predicts the whole return."""

    predicts = "return"

    async def values(self, trajectories):
        import numpy as np

        return np.array([sum("said 1" in step.observation for step in path.steps) / 3 for path in trajectories])
'''


def write_agent(folder: Path, source: str = MODULE, more: str = "") -> str:
    """Write a module with a name of its own, and return its name."""
    name = f"own_agent_{next(_numbers)}"
    (folder / f"{name}.py").write_text(source + more)
    return name


def write_tasks(folder: Path, n_tasks: int = 4, split: str = "test", **payload) -> Path:
    """Write tasks of a split."""
    lines = [
        {"id": f"t{n}", "instruction": f"Say bits, {n}.", "split": split, "ones": 2, **payload} for n in range(n_tasks)
    ]
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
