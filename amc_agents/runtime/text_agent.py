"""A ReAct agent for text worlds: the model writes a thought and an action, and the world answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from amc_agents.concurrency.background import run_in_background
from amc_agents.messages import turn_of
from amc_agents.quoting import keep_secrets_of
from amc_agents.runtime.effects import effect
from amc_agents.runtime.world import current_environment


class TextAgentState(TypedDict):
    """The agent's conversation with the world."""

    messages: Annotated[list[BaseMessage], add_messages]
    done: bool
    """True if the world has ended the episode."""


class _Conversation(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]


class _Ending(TypedDict):
    # LangGraph reads all channels of a branch's schema; with the messages it would reduce them again.
    done: bool


def text_agent(model: BaseChatModel) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Build a graph `model -> tools -> model ...` whose `tools` node is the particle's world.

    Input and output: `{"messages": [...]}`; the first message is the task's instruction. The world is
    `current_environment()`: amc(..., environment=...) gives each particle its own.
    """
    graph = StateGraph(TextAgentState, input_schema=_Conversation, output_schema=_Conversation)
    graph.add_node("model", model_node(model))
    graph.add_node("tools", world_node())
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_conditional_edges("tools", _after_world)
    return graph.compile(name="text_agent")


def model_node(model: BaseChatModel) -> Runnable[Any, Any]:
    """Build a node that appends the next message of `model`."""
    return _ModelNode(model)


def world_node() -> Runnable[Any, Any]:
    """Build a node that executes the last message's action in the particle's world."""
    return _WorldNode()


@effect("read")
class _ModelNode(Runnable[Any, Any]):
    # Not a RunnableLambda: LangGraph traces each node already, and a second trace of the same call, with two inspected
    # signatures, took a tenth of a particle's step.

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        keep_secrets_of(model)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> dict[str, Any]:
        return {"messages": [self._model.invoke(input["messages"], config)]}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> dict[str, Any]:
        return {"messages": [await self._model.ainvoke(input["messages"], config)]}


@effect("world")
class _WorldNode(Runnable[Any, Any]):
    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> dict[str, Any]:
        return run_in_background(self.ainvoke(input), n_workers=1)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> dict[str, Any]:
        last = input["messages"][-1]
        if not isinstance(last, AIMessage):
            raise TypeError(f"the world acts on an AIMessage, and the last message is a {type(last).__name__}")
        answer = await current_environment().step(turn_of(last)[1])
        return {"messages": [HumanMessage(answer.observation)], "done": answer.done}


def _after_world(state: _Ending) -> Literal["model", "__end__"]:
    return "__end__" if state["done"] else "model"
