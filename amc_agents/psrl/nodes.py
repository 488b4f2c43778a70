"""PSRL and IDS as nodes for graphs of one's own, and as ready agents for text worlds.

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
from amc_agents.psrl.conversation.explorer import Explorer
from amc_agents.psrl.conversation.information_directed import InformationDirectedExplorer, ListedActions
from amc_agents.psrl.conversation.options import ExplorerOptions, Place, in_sync
from amc_agents.psrl.conversation.posterior_sampling import (
    PosteriorSamplingExplorer,
    acting_on,
    checked_prompt,
    with_system_text,
)
from amc_agents.psrl.estimates import Estimator
from amc_agents.psrl.role_models import RoleModel
from amc_agents.psrl.roles import Sampler
from amc_agents.runtime.contract import as_mapping
from amc_agents.runtime.deciding_model import Record
from amc_agents.runtime.effects import effect
from amc_agents.runtime.world import current_environment

Node = RunnableLambda[Any, Any]


class ExplorationNodes(NamedTuple):
    """Nodes of a StateGraph with the channels `messages` and `episode`, each for sync and async."""

    begin: Node
    """First of all: learns what died before, and begins the episode."""
    act: Node
    """Adds the agent's turn."""
    observe: Node
    """After the world has answered: keeps it, and learns from it where that is done step by step."""
    end: Node
    """Last of all: learns."""


class ExplorationState(TypedDict):
    """What a ready agent keeps."""

    messages: Annotated[list[BaseMessage], add_messages]
    episode: Record
    """The episode under way."""
    done: bool
    """The world has ended it."""


class _Conversation(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]


def posterior_sampling_nodes(
    sampler: BaseChatModel | RoleModel | Sampler,
    *,
    policy: BaseChatModel | RoleModel | None = None,
    **options: Unpack[ExplorerOptions],
) -> ExplorationNodes:
    """LLM-PSRL as nodes.

    Args:
        sampler: draws hypotheses: a chat model, a `RoleModel` with temperature and prompt, or anything with `sample`.
        policy: acts: a chat model, or a `RoleModel` whose prompt, if any, uses {hypothesis}. It reads the conversation
            with the hypothesis in its system prompt. Default: the sampler's model.
        **options: see `ExplorerOptions`.

    Raises:
        ConfigurationError: a setting makes no sense.
    """
    explorer = PosteriorSamplingExplorer(sampler, **options)
    acting = sampler if policy is None and isinstance(sampler, BaseChatModel | RoleModel) else policy
    if acting is None:
        raise ConfigurationError("nobody acts on the hypotheses: give policy=, since the sampler is no chat model")
    model = acting.tempered if isinstance(acting, RoleModel) else acting
    prompt = checked_prompt(acting.prompt) if acting is policy and isinstance(acting, RoleModel) else None

    def told(state: Any) -> list[BaseMessage]:
        given = as_mapping(state)
        messages = list(given["messages"])
        first = messages.pop(0) if messages and isinstance(messages[0], SystemMessage) else None
        return [with_system_text(first, acting_on(given["episode"]["hypothesis"], prompt)), *messages]

    def call(state: Any) -> Record:
        return {"messages": [model.invoke(told(state))]}

    async def acall(state: Any) -> Record:
        return {"messages": [await model.ainvoke(told(state))]}

    return _nodes(explorer, effect("read")(RunnableLambda(call, acall, name="act")))


def information_directed_nodes(
    regret: BaseChatModel | RoleModel | Estimator,
    actions: ListedActions,
    *,
    information: BaseChatModel | RoleModel | None = None,
    best_return: float | None = None,
    **options: Unpack[ExplorerOptions],
) -> ExplorationNodes:
    """LLM-IDS as nodes.

    Args:
        regret: says what an action costs: a chat model, a `RoleModel`, or an estimator that says both.
        actions: what can be done, or a function of the conversation that lists it.
        information: says what an action teaches. Default: the model of `regret`.
        best_return: what an optimal policy earns, where that is known; `regret` is then asked for returns.
        **options: see `ExplorerOptions`.

    Raises:
        ConfigurationError: a setting makes no sense.
    """
    explorer = InformationDirectedExplorer(regret, actions, information=information, best_return=best_return, **options)

    async def choose(given: Any, place: Place) -> Record:
        listed = explorer.listed(given["messages"])
        return {"messages": [await explorer.choose(given["episode"], given["messages"], listed, place)]}

    return _nodes(explorer, effect("read")(_node("act", choose)))


def exploring_text_agent(
    nodes: ExplorationNodes, *, show_rewards: bool = False, **compiled: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A ready agent for text worlds: each invocation is one episode in the world of `current_environment()`.

    Input and output: `{"messages": [...]}`; the first message is the task's instruction.

    Args:
        nodes: of either method.
        show_rewards: each answer of the world ends with its reward, for worlds that do not tell it.
        **compiled: for `StateGraph.compile`: at least `store=`, unless the nodes were given `memory=`.
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


def _nodes(explorer: Any, act: Node) -> ExplorationNodes:
    assert isinstance(explorer, Explorer)

    async def begin(given: Any, place: Place) -> Record:
        return {"episode": await explorer.start(given.get("episode"), given["messages"], place), "done": False}  # type: ignore[attr-defined]

    async def observe(given: Any, place: Place) -> Record:
        return {"episode": await explorer.observe(given["episode"], given["messages"], place)}

    async def end(given: Any, place: Place) -> Record:
        return {"episode": await explorer.end(given["episode"], given["messages"], place)}

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
            raise TypeError(f"the world acts on an AIMessage, and the last message is a {type(last).__name__}")
        answer = await current_environment().step(turn_of(last)[1])
        reward = f"\nReward: {answer.reward:g}" if show_rewards else ""
        return {"messages": [HumanMessage(f"{answer.observation}{reward}")], "done": answer.done}

    def call(state: ExplorationState) -> Record:
        return run_in_background(acall(state), n_workers=1)

    return effect("world")(RunnableLambda(call, acall, name="tools"))


def _next(state: ExplorationState) -> Literal["act", "end"]:
    return "end" if state["done"] else "act"
