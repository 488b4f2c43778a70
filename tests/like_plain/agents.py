"""Scripted agents, by the feature of LangGraph that each uses."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as field_of
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.tools import InjectedState, InjectedStore, InjectedToolCallId, ToolRuntime
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents.runtime.effects import effect
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step, Task, Trajectory
from tests.like_plain.play import Edit, Parts, Scenario

Ledger = Counter[str]
HELLO = {"messages": [HumanMessage("hello")]}
MORE = {"messages": [HumanMessage("and more")]}


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args, "id": f"{name}-{sorted(args.items())}"}


def scripted(*answers: Any) -> ScriptedChatModel:
    """A model that gives these answers after each message of a human, in this order: texts, tool calls or errors."""

    def respond(messages: Sequence[Any]) -> Any:
        last = max((n for n, message in enumerate(messages) if message.type == "human"), default=0)
        answer = answers[min(sum(message.type == "ai" for message in messages[last:]), len(answers) - 1)]
        if isinstance(answer, Exception):
            return answer
        calls = [answer] if isinstance(answer, dict) else answer if isinstance(answer, list) else []
        return AIMessage(
            answer if isinstance(answer, str) else "",
            tool_calls=calls,
            usage_metadata={"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
            response_metadata={"model_name": "scripted"},
        )

    return ScriptedChatModel(respond=respond)


LOOK = scripted(call("look", word="a"), call("look", word="b"), "Done.")


def looking(ledger: Ledger) -> Any:
    @tool
    def look(word: str) -> str:
        """Look a word up."""
        ledger[f"look {word}"] += 1
        return f"{word}: found"

    return look


def agent_with(*tools: Callable[[Ledger], Any], model: Any = LOOK, **options: Any) -> Callable[[Parts], Any]:
    """Return a function that makes a `create_agent` agent with these tools; `options` may be functions of the parts."""

    def make(parts: Parts) -> Any:
        given = {key: value(parts) if callable(value) else value for key, value in options.items()}
        return create_agent(
            model, [one(parts.ledger) for one in tools], checkpointer=parts.saver, store=parts.store, **given
        )

    return make


def by_hand(
    model: Any = LOOK, state: Any = MessagesState, tools: Callable[[Ledger], Any] = looking, **options: Any
) -> Callable[[Parts], Any]:
    """Return a function that makes a graph of a model node and a `ToolNode`."""

    def make(parts: Parts) -> Any:
        builder: StateGraph[Any] = StateGraph(state, **options)
        builder.add_node("model", lambda state: {"messages": [model.invoke(_read(state, "messages"))]})
        builder.add_node("tools", ToolNode([tools(parts.ledger)]))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=parts.saver, store=parts.store)

    return make


def loop(
    node: Any, state: Any, *, until: Callable[[Any], bool], more: Callable[[Any, Parts], None] = lambda b, p: None,
    **options: Any,
) -> Callable[[Parts], Any]:  # fmt: skip
    """Return a function that makes a graph of one node, "act", that repeats until a condition holds."""

    def make(parts: Parts) -> Any:
        builder: StateGraph[Any] = StateGraph(state, **options)
        builder.add_node("act", node(parts.ledger))
        builder.add_edge(START, "act")
        builder.add_conditional_edges("act", lambda state: END if until(state) else "act")
        more(builder, parts)
        return builder.compile(checkpointer=parts.saver, store=parts.store)

    return make


def _read(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


ACT = {"step_after": "act"}


# States


class Tallied(MessagesState):
    tally: Annotated[list[int], operator.add]
    last: str
    deep: dict[str, Any]


def tallying(ledger: Ledger) -> Any:
    def act(state: Tallied) -> dict[str, Any]:
        n = len(state["tally"])
        ledger[f"act {n}"] += 1
        deep = {"a": {"b": [*state.get("deep", {}).get("a", {}).get("b", []), {"c": (n, {n})}]}}
        return {"tally": [n], "last": f"n{n}", "deep": deep, "messages": [AIMessage(f"act {n}")]}

    return act


@dataclass
class DataState:
    messages: Annotated[list[AnyMessage], add_messages]
    limit: int = 2
    seen: Annotated[list[str], operator.add] = field_of(default_factory=list)


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    limit: int = 2
    seen: Annotated[list[str], operator.add] = []


def seeing(ledger: Ledger) -> Any:
    def act(state: Any) -> dict[str, Any]:
        n = len(state.seen)
        ledger[f"act {n}"] += 1
        return {"seen": [f"{n} of {state.limit}"], "messages": [AIMessage(f"act {n}")]}

    return act


class Private(TypedDict):
    secret: str


class Narrow(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Wide(Narrow):
    inside: int


def with_private_channel(parts: Parts) -> Any:
    def tools(state: Wide) -> dict[str, Any]:
        return {"secret": "s", "inside": state.get("inside", 0) + 1, "messages": [AIMessage("wrote")]}

    def reads(state: Private) -> dict[str, Any]:
        return {"messages": [AIMessage(f"read {state['secret']}")]}

    builder: StateGraph[Any] = StateGraph(Wide, input_schema=Narrow, output_schema=Narrow)
    builder.add_node("tools", tools)
    builder.add_node("reads", reads)
    builder.add_edge(START, "tools")
    builder.add_edge("tools", "reads")
    return builder.compile(checkpointer=parts.saver)


class Counted(TypedDict):
    n: int
    log: Annotated[list[str], operator.add]


def counting(ledger: Ledger) -> Any:
    def act(state: Counted) -> dict[str, Any]:
        ledger["act"] += 1
        return {"n": state["n"] + 1, "log": [f"n {state['n']}"]}

    return act


def counted_trajectory(state: Any) -> Trajectory:
    steps = tuple(Step(line, observation="ok") for line in state.get("log", ()))
    return Trajectory(Task("count", "count"), steps)


# Context, store, runtime


@dataclass
class User:
    name: str = "nobody"


def greeting(ledger: Ledger) -> Any:
    @tool
    def greet(runtime: ToolRuntime[User]) -> str:
        """Greet the user."""
        ledger["greet"] += 1
        return f"hello {runtime.context.name}, call {runtime.tool_call_id}, {len(runtime.state['messages'])} messages"

    return greet


def remembering(ledger: Ledger) -> Any:
    @tool
    def remember(word: str, runtime: ToolRuntime) -> str:
        """Remember a word."""
        known = runtime.store.search(("words",))
        runtime.store.put(("words",), word, {"n": len(known)})
        return f"{len(known)} known"

    return remember


def injected(ledger: Ledger) -> Any:
    @tool
    def inject(
        word: str,
        state: Annotated[Any, InjectedState],
        messages: Annotated[list[Any], InjectedState("messages")],
        store: Annotated[Any, InjectedStore()],
        call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:
        """Use everything that can be injected."""
        store.put(("seen",), word, {"n": len(messages)})
        text = f"{len(state['messages'])} {len(messages)} {call_id}"
        return Command(update={"messages": [ToolMessage(text, tool_call_id=call_id)]})

    return inject


def by_user(ledger: Ledger) -> Any:
    def act(state: Any, config: RunnableConfig, runtime: Runtime[User]) -> dict[str, Any]:
        get_store().put(("runs",), runtime.context.name, {"by": config["configurable"].get("user")})
        writer = get_stream_writer()
        writer({"progress": len(state["messages"])})
        runtime.stream_writer("half way")
        return {"messages": [AIMessage(f"{runtime.context.name} {config['configurable'].get('user')}")]}

    return act


def thread_reader(ledger: Ledger) -> Any:
    def act(state: Any, config: RunnableConfig) -> dict[str, Any]:
        own = config["configurable"].get("thread_id")
        return {"messages": [AIMessage(f"{own} {(config.get('metadata') or {}).get('thread_id') == own}")]}

    return act


# Control


def asking(ledger: Ledger) -> Any:
    def act(state: Any) -> dict[str, Any]:
        n = len(state["messages"])
        if n == 2:
            ledger["asked"] += 1
            answer = interrupt({"question": "really?"})
            ledger[f"once: answered {answer}"] += 1
            return {"messages": [AIMessage(f"answer {answer}, limit {state.get('limit')}")]}
        return {"messages": [AIMessage(f"act {n}")]}

    return act


class Limited(MessagesState):
    limit: int


def going(parts: Parts) -> Any:
    ledger = parts.ledger
    builder: StateGraph[Any] = StateGraph(MessagesState)

    def tools(state: Any) -> Command[Any]:
        ledger["tools"] += 1
        return Command(goto="left" if len(state["messages"]) < 3 else "right", update={"messages": [AIMessage("go")]})

    builder.add_node("tools", tools, destinations=("left", "right"))
    builder.add_node("left", lambda state: Command(goto="tools", update={"messages": [AIMessage("left")]}),
                     destinations=("tools",))  # fmt: skip
    builder.add_node("right", lambda state: {"messages": [AIMessage("right")]})
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=parts.saver)


class Fanned(MessagesState):
    found: Annotated[list[str], operator.add]


def fanning(parts: Parts) -> Any:
    ledger = parts.ledger
    builder: StateGraph[Any] = StateGraph(Fanned)

    def branch(state: Any) -> dict[str, Any]:
        ledger[f"branch {state['item']}"] += 1
        return {"found": [state["item"]]}

    builder.add_node("tools", lambda state: {"messages": [AIMessage("split")]})
    builder.add_node("branch", branch)
    builder.add_node("join", lambda state: {"messages": [AIMessage(",".join(sorted(state["found"])))]})
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: [Send("branch", {"item": item}) for item in "abc"], ["branch"])
    builder.add_edge("branch", "join")
    return builder.compile(checkpointer=parts.saver)


def with_subgraph(parts: Parts) -> Any:
    inner: StateGraph[Any] = StateGraph(MessagesState)
    inner.add_node("inner", lambda state: {"messages": [LOOK.invoke([HumanMessage("x")])]})
    inner.add_node("tools", ToolNode([looking(parts.ledger)]))
    inner.add_edge(START, "inner")
    inner.add_edge("inner", "tools")
    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_node("sub", inner.compile())
    builder.add_node("after", lambda state: {"messages": [AIMessage("after")]})
    builder.add_edge(START, "sub")
    builder.add_edge("sub", "after")
    return builder.compile(checkpointer=parts.saver)


def retrying(parts: Parts) -> Any:
    ledger = parts.ledger
    seen: set[str] = set()

    def act(state: Any, config: RunnableConfig) -> dict[str, Any]:
        attempt = config["configurable"]["__pregel_runtime"].execution_info.node_attempt
        ledger[f"attempt {attempt}"] += 1
        if attempt < 2:
            raise ConnectionError("once")
        return {"messages": [AIMessage(f"worked after {len(seen)}")]}

    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_node(
        "act", act, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, retry_on=ConnectionError)
    )
    builder.add_edge(START, "act")
    return builder.compile(checkpointer=parts.saver)


def cached(parts: Parts) -> Any:
    ledger = parts.ledger
    builder: StateGraph[Any] = StateGraph(Fanned)

    def act(state: Any) -> dict[str, Any]:
        ledger["act"] += 1
        return {"found": ["computed"]}

    builder.add_node("act", act, cache_policy=CachePolicy(key_func=lambda state: "one key"))
    builder.add_node("again", lambda state: {"messages": [AIMessage(f"{len(state['found'])} times")]})
    builder.add_edge(START, "act")
    builder.add_edge("act", "again")
    builder.add_conditional_edges("again", lambda state: "act" if len(state["found"]) < 3 else END)
    return builder.compile(checkpointer=parts.saver, cache=InMemoryCache())


def removing(ledger: Ledger) -> Any:
    def act(state: Any) -> dict[str, Any]:
        first = state["messages"][0]
        changes = [RemoveMessage(first.id)] if len(state["messages"]) > 2 else []
        return {"messages": [*changes, AIMessage(f"had {len(state['messages'])}")]}

    return act


def replacing(ledger: Ledger) -> Any:
    def act(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"draft {len(state['messages'])}", id="draft"), AIMessage("more")]}

    return act


def paying(ledger: Ledger) -> Any:
    @tool
    @effect("commit")
    def pay(amount: int) -> str:
        """Pay an amount."""
        ledger[f"once: pay {amount}"] += 1
        return f"paid {amount}"

    return pay


def failing_tool(ledger: Ledger) -> Any:
    @tool
    def look(word: str) -> str:
        """Look a word up."""
        ledger["look"] += 1
        raise ValueError(f"no {word}")

    return look


def many(state: Any) -> bool:
    return len(_read(state, "messages")) > 3


THREE = scripted([call("look", word="a"), call("look", word="b")], call("look", word="c"), "Done.")

AGENTS: dict[str, Scenario] = {
    "agent": Scenario(agent_with(looking), [HELLO, MORE]),
    "graph by hand": Scenario(by_hand(), [HELLO, MORE]),
    "parallel tool calls": Scenario(agent_with(looking, model=THREE), [HELLO]),
    "messages as tuples": Scenario(agent_with(looking), [{"messages": [("user", "hello")]}]),
    "messages as dicts": Scenario(agent_with(looking), [{"messages": [{"role": "user", "content": "hello"}]}]),
    "a single message": Scenario(agent_with(looking), [{"messages": HumanMessage("hello")}]),
    "no input": Scenario(agent_with(looking), [{"messages": []}]),
    "typed state": Scenario(loop(tallying, Tallied, until=lambda s: len(s["tally"]) > 2), [HELLO, MORE], ACT),
    "dataclass state": Scenario(
        loop(seeing, DataState, until=lambda s: len(s.seen) > 2), [HELLO, {**MORE, "limit": 3}], ACT
    ),
    "pydantic state": Scenario(
        loop(seeing, PydanticState, until=lambda s: len(s.seen) > 2), [HELLO, {**MORE, "limit": 3}], ACT
    ),
    "invalid pydantic state": Scenario(
        loop(seeing, PydanticState, until=lambda s: len(s.seen) > 2), [{**HELLO, "limit": "many"}], ACT
    ),
    "private channel": Scenario(with_private_channel, [HELLO, MORE]),
    "no messages": Scenario(
        loop(counting, Counted, until=lambda s: s["n"] > 2),
        [{"n": 0}, {"n": 1}],
        {**ACT, "trajectory": counted_trajectory},
    ),
    "context in a tool": Scenario(
        agent_with(greeting, model=scripted(call("greet"), "Done."), context_schema=lambda _: User),
        [HELLO],
        context=User("ann"),
    ),
    "store in a tool": Scenario(
        agent_with(remembering, model=scripted(call("remember", word="a"), call("remember", word="b"), "Done.")),
        [HELLO, MORE],
    ),
    "injected arguments": Scenario(
        agent_with(injected, model=scripted(call("inject", word="a"), "Done.")), [HELLO, MORE]
    ),
    "context, config, store and events": Scenario(
        loop(by_user, MessagesState, until=many, context_schema=User),
        [HELLO],
        ACT,
        config={"configurable": {"user": "u1"}},
        context=User("ann"),
    ),
    "the thread's id": Scenario(loop(thread_reader, MessagesState, until=many), [HELLO], ACT),
    "interrupt": Scenario(
        loop(asking, Limited, until=many), [{**HELLO, "limit": 1}, Command(resume="yes")], ACT, needs_saver=True
    ),
    "interrupt, resume with update": Scenario(
        loop(asking, Limited, until=many),
        [{**HELLO, "limit": 1}, Command(resume="yes", update={"limit": 5})],
        ACT,
        needs_saver=True,
    ),
    "interrupt, edited": Scenario(
        loop(asking, Limited, until=many),
        [{**HELLO, "limit": 1}, Edit({"limit": 5}), Command(resume="yes")],
        ACT,
        needs_saver=True,
    ),
    "edited between turns": Scenario(
        agent_with(looking), [HELLO, Edit({"messages": [HumanMessage("edited")]}), MORE], needs_saver=True
    ),
    "goto": Scenario(going, [HELLO, MORE]),
    "fan-out": Scenario(fanning, [HELLO]),
    "subgraph": Scenario(with_subgraph, [HELLO, MORE], {"step_after": "sub"}),
    "retry policy": Scenario(retrying, [HELLO], ACT),
    "cache policy": Scenario(cached, [HELLO], ACT),
    "removed messages": Scenario(
        loop(removing, MessagesState, until=lambda s: len(s["messages"]) > 2), [HELLO, MORE], ACT
    ),
    "replaced messages": Scenario(loop(replacing, MessagesState, until=many), [HELLO, MORE], ACT),
    "commit tool": Scenario(
        agent_with(paying, model=scripted(call("pay", amount=1), call("pay", amount=2), "Done.")), [HELLO, MORE]
    ),
    "tool error": Scenario(agent_with(failing_tool), [HELLO]),
    "model error": Scenario(
        agent_with(looking, model=scripted(call("look", word="a"), ValueError("the model is down"))), [HELLO]
    ),
    "recursion limit of the call": Scenario(
        agent_with(looking, model=scripted(call("look", word="a"))), [HELLO], config={"recursion_limit": 7}
    ),
    "bound recursion limit": Scenario(
        agent_with(looking, model=scripted(call("look", word="a"))), [HELLO], bound={"recursion_limit": 7}
    ),
    "tags and metadata": Scenario(
        agent_with(looking), [HELLO], config={"tags": ["mine"], "metadata": {"team": "t"}, "run_name": "r"}
    ),
}
