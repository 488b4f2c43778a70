"""PSRL and IDS as nodes for custom graphs, and as ready agents for text worlds.

begin -> act -> (the world) -> observe -> act ... -> end
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, NamedTuple, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime
from typing_extensions import TypedDict

from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import ConfigurationError
from amc_agents.messages import turn_of
from amc_agents.psrl.explorers import (
    InformationDirectedExplorer,
    ListedActions,
    PosteriorSamplingExplorer,
    checked_prompt,
    hypothesis_prompt,
    with_system_text,
)
from amc_agents.psrl.ids import Estimator
from amc_agents.psrl.options import ExplorerOptions, Place, RoleModel, in_sync
from amc_agents.psrl.roles import Sampler
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.runtime.contract import as_mapping
from amc_agents.runtime.deciding import Record
from amc_agents.runtime.effects import effect
from amc_agents.runtime.world import current_environment

Node = RunnableLambda[Any, Any]


class ExplorationNodes(NamedTuple):
    """Nodes of a StateGraph with the channels `messages` and `episode`, each for sync and async."""

    begin: Node
    """Runs first: learns from interrupted episodes and begins the episode."""
    act: Node
    """Adds the agent's turn."""
    observe: Node
    """Runs after the world's answer: records the step, and learns from it if updates happen after each step."""
    end: Node
    """Runs last: learns from the remaining steps."""


class ExplorationState(TypedDict):
    """State of a ready agent."""

    messages: Annotated[list[BaseMessage], add_messages]
    episode: Record
    """The current episode."""
    done: bool
    """True if the world has ended the episode."""


class _Conversation(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]


def posterior_sampling_nodes(
    sampler: BaseChatModel | RoleModel | Sampler,
    *,
    policy: BaseChatModel | RoleModel | None = None,
    **options: Unpack[ExplorerOptions],
) -> ExplorationNodes:
    """Create the nodes of LLM-PSRL.

    Args:
        sampler: draws hypotheses: a chat model, a `RoleModel` with temperature and prompt, or any object with `sample`.
        policy: acts: a chat model, or a `RoleModel`, whose prompt, if any, must use {hypothesis}. It reads the
            conversation with the hypothesis in its system prompt. Default: the sampler's model.
        **options: see `ExplorerOptions`.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    explorer = PosteriorSamplingExplorer(sampler, **options)
    actor = sampler if policy is None and isinstance(sampler, BaseChatModel | RoleModel) else policy
    if actor is None:
        raise ConfigurationError("no model acts on the hypotheses: give policy=, since the sampler is not a chat model")
    model = actor.tempered if isinstance(actor, RoleModel) else actor
    prompt = checked_prompt(actor.prompt) if actor is policy and isinstance(actor, RoleModel) else None

    def with_hypothesis(state: Any) -> list[BaseMessage]:
        values = as_mapping(state)
        messages = list(values["messages"])
        first = messages.pop(0) if messages and isinstance(messages[0], SystemMessage) else None
        return [with_system_text(first, hypothesis_prompt(values["episode"]["hypothesis"], prompt)), *messages]

    def call(state: Any) -> Record:
        with bounded(explorer.budget, None, explorer, model):
            return {"messages": [model.invoke(with_hypothesis(state))]}

    async def acall(state: Any) -> Record:
        with bounded(explorer.budget, None, explorer, model):
            return {"messages": [await model.ainvoke(with_hypothesis(state))]}

    return _nodes(explorer, effect("read")(RunnableLambda(call, acall, name="act")))


def information_directed_nodes(
    regret: BaseChatModel | RoleModel | Estimator,
    actions: ListedActions,
    *,
    information: BaseChatModel | RoleModel | None = None,
    best_return: float | None = None,
    **options: Unpack[ExplorerOptions],
) -> ExplorationNodes:
    """Create the nodes of LLM-IDS.

    Args:
        regret: estimates the regret of each action: a chat model, a `RoleModel`, or an estimator of both regret and
            information.
        actions: all actions, or a function that lists them given the conversation.
        information: estimates the information from each action. Default: the model of `regret`.
        best_return: return of an optimal policy, if known; `regret` then estimates returns.
        **options: see `ExplorerOptions`.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    explorer = InformationDirectedExplorer(regret, actions, information=information, best_return=best_return, **options)

    async def choose(values: Any, place: Place) -> Record:
        listed = explorer.actions_at(values["messages"])
        return {"messages": [await explorer.choose(values["episode"], values["messages"], listed, place)]}

    return _nodes(explorer, effect("read")(_node("act", choose)))


def exploring_text_agent(
    nodes: ExplorationNodes, *, show_rewards: bool = False, **compiled: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Build an agent for text worlds. Each invocation is one episode in the world of `current_environment()`.

    Input and output are `{"messages": [...]}`. The first message is the task's instruction.

    Args:
        nodes: nodes of either method.
        show_rewards: append the reward to each answer of the world, for worlds that do not show it.
        **compiled: arguments of `StateGraph.compile`; requires `store=`, unless the nodes have `memory=`.
    """
    graph = StateGraph(ExplorationState, input_schema=_Conversation, output_schema=_Conversation)
    for name, node in zip(nodes._fields, nodes, strict=True):
        graph.add_node(name, node)
    graph.add_node("tools", _world(show_rewards))
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "act")
    graph.add_edge("act", "tools")
    graph.add_edge("tools", "observe")
    graph.add_conditional_edges("observe", _next)
    graph.add_edge("end", END)
    return graph.compile(**{"name": "exploring_text_agent", **compiled})


def _nodes(explorer: PosteriorSamplingExplorer | InformationDirectedExplorer, act: Node) -> ExplorationNodes:
    async def begin(values: Any, place: Place) -> Record:
        return {"episode": await explorer.start(values.get("episode"), values["messages"], place), "done": False}

    async def observe(values: Any, place: Place) -> Record:
        return {"episode": await explorer.observe(values["episode"], values["messages"], place)}

    async def end(values: Any, place: Place) -> Record:
        return {"episode": await explorer.end(values["episode"], values["messages"], place)}

    return ExplorationNodes(_node("begin", begin), act, _node("observe", observe), _node("end", end))


def _node(name: str, work: Callable[[Any, Place], Coroutine[Any, Any, Record]]) -> Node:
    def call(state: Any) -> Record:
        return in_sync(get_runtime(), lambda place: work(as_mapping(state), place))

    async def acall(state: Any) -> Record:
        return await work(as_mapping(state), Place(get_runtime()))

    return RunnableLambda(call, acall, name=name)


def _world(show_rewards: bool) -> Node:
    async def acall(state: ExplorationState) -> Record:
        last = state["messages"][-1]
        if not isinstance(last, AIMessage):
            raise TypeError(f"the world acts on an AIMessage: expected one at the end, got a {type(last).__name__}")
        answer = await current_environment().step(turn_of(last)[1])
        reward = f"\nReward: {answer.reward:g}" if show_rewards else ""
        return {"messages": [HumanMessage(f"{answer.observation}{reward}")], "done": answer.done}

    def call(state: ExplorationState) -> Record:
        return run_in_background(acall(state), n_workers=1)

    return effect("world")(RunnableLambda(call, acall, name="tools"))


def _next(state: ExplorationState) -> Literal["act", "end"]:
    return "end" if state["done"] else "act"
