"""Crafting tasks in the user's words, and the graph of a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NotRequired

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

from amc_agents import Task
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.errors import ConfigurationError
from shared.models import OWN_MODEL, RULES

HORIZON = 20


class Context(TypedDict):
    """Settings of a run."""

    critic: NotRequired[Literal["embedded:crafting", "uniform"] | str]


def crafting_world(state: Any) -> tuple[CraftingWorld, Task]:
    """Return the world and the task of a particle's input."""
    return CraftingWorld(), parse_instruction(state["messages"][-1].text)


def served(name: str, play: Callable[..., Any]) -> Any:
    """Build the graph of a run, in which `play` answers to the user's last message."""
    return StateGraph(MessagesState, Context).add_node("play", play).add_edge(START, "play").compile(name=name)


def opening(state: MessagesState) -> list[AnyMessage]:
    """Return the messages of an episode: the task that the last message names or contains."""
    text = state["messages"][-1].text
    numbered = re.fullmatch(r"(?:task\s*)?([0-9]{1,9})", text.strip(), re.IGNORECASE)
    task = generate_task(int(numbered[1]), "play", optimal_steps=(4, 9)) if numbered else parse_instruction(text)
    # The package's model was trained without a system prompt.
    rules: list[AnyMessage] = [SystemMessage(RULES)] if OWN_MODEL else []
    return [*rules, HumanMessage(task.instruction)]


def explained(error: ConfigurationError) -> dict[str, Any]:
    """Return the answer to a message that is no task, or to a critic that is not offered."""
    return {"messages": [AIMessage(f"Send `task 7` or paste a task, and choose an offered critic, if any. ({error})")]}
