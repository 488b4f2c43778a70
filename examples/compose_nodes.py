"""Use the library's nodes in your own graph, wrap it with `amc`, and use the result as a node of a larger graph."""

from __future__ import annotations

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents import AtSteps, amc
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.text_agent import TextAgentState, model_node, world_node


class State(TextAgentState):
    """The text agent's state with an additional counter."""

    failures: int


def count_failures(state: State):
    """An additional node between the world and the model, which reads the world's observation."""
    return {"failures": state.get("failures", 0) + ("Could not" in state["messages"][-1].text)}


def after_count(state: State):
    """Stop after three failures."""
    return END if state["done"] or state["failures"] >= 3 else "model"


def make_agent():
    """The agent: model -> tools -> count -> model ..."""
    graph = StateGraph(State)
    graph.add_node("model", model_node(EmbeddedChatModel(temperature=0.7)))
    graph.add_node("tools", world_node())
    graph.add_node("count", count_failures)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", "count")
    graph.add_conditional_edges("count", after_count, ["model", END])
    return graph.compile(name="careful")


def world_of(state):
    """The world and the task of an input."""
    return CraftingWorld(), parse_instruction(state["messages"][0].text)


if __name__ == "__main__":
    particles = amc(make_agent(), "embedded:crafting", environment=world_of, n_particles=15, resample=AtSteps(4, 8),
                    beta=0.1, horizon=20, seed=0)  # fmt: skip
    outer = StateGraph(MessagesState)
    outer.add_node("particles", particles)
    outer.add_node("report", lambda state: {"messages": [AIMessage(f"{len(state['messages']) // 2} steps made")]})
    outer.add_edge(START, "particles")
    outer.add_edge("particles", "report")
    task = generate_task(7, "examples", optimal_steps=(6, 9))
    output = outer.compile().invoke({"messages": [HumanMessage(task.instruction)]})
    print("\n".join(message.text for message in output["messages"]))
