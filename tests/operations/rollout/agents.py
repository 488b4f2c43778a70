"""Agents whose answers are known."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


def answering(text: str, checkpointer: Any = None, **options: Any) -> Any:
    """A graph that answers every message by `text`; a node named "tools" ends its only step."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(text)]}

    graph = StateGraph(MessagesState, **options)
    graph.add_node("tools", answer)
    graph.add_edge(START, "tools")
    return graph.compile(checkpointer=checkpointer)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


HELLO: Any = {"messages": [("user", "hello")]}
