"""Nothing runs N times for real without a declaration."""

import functools
from types import SimpleNamespace

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, TodoListMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.func import task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

from amc_agents import effect
from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.lac.model import actor_critic_node
from amc_agents.population.wrap import amc
from amc_agents.smc import EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.worlds import number_agent, say, start, sum_world, tool_caller


def post(to: str) -> str:
    """Post a letter."""
    SENT.append(to)
    return "sent"


SENT: list[str] = []
send = StructuredTool.from_function(post, name="send")


def asks_once(messages):
    if isinstance(messages[-1], ToolMessage):
        return AIMessage("done")
    return AIMessage("", tool_calls=[{"name": "send", "args": {"to": "boss"}, "id": "1"}])


model = ScriptedChatModel(respond=asks_once)


def loop(node, name="tools"):
    """A hand-written agent: its model calls `send`, and `node` runs the call."""
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node(name, node)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition, {"tools": name, END: END})
    builder.add_edge(name, "agent")
    return builder.compile()


class BasicToolNode:
    """As the tutorial of LangGraph writes it."""

    def __init__(self, tools):
        self.tools_by_name = {tool.name: tool for tool in tools}

    def __call__(self, state):
        calls = state["messages"][-1].tool_calls
        results = [self.tools_by_name[call["name"]].invoke(call["args"]) for call in calls]
        return {
            "messages": [
                ToolMessage(result, tool_call_id=call["id"]) for call, result in zip(calls, results, strict=True)
            ]
        }


class Office:
    def __init__(self, tools):
        self.tools = ToolNode(tools)

    def work(self, state, config):
        return self.tools.invoke(state, config)


def by_hand(state):
    post("boss")
    return {"messages": [ToolMessage("sent", tool_call_id="1")]}


def by_hand_streaming(states):
    for state in states:
        yield by_hand(state)


def calls_a_tool_node(state, config):
    return ToolNode([send]).invoke(state, config)


async def acalls_a_tool_node(state, config):
    return await ToolNode([send]).ainvoke(state, config)


def inner_graph():
    builder = StateGraph(MessagesState)
    builder.add_node("act", ToolNode([send]))
    builder.add_edge(START, "act")
    return builder.compile()


def subgraph_by_hand():
    builder = StateGraph(MessagesState)
    builder.add_node("act", by_hand)
    builder.add_edge(START, "act")
    return builder.compile()


HOLES = {
    "ToolNode": lambda: ToolNode([send]),
    "with_fallbacks": lambda: ToolNode([send]).with_fallbacks([RunnableLambda(lambda s: s)], exception_key="error"),
    "a fallback": lambda: RunnableLambda(lambda s: s).with_fallbacks([ToolNode([send])]),
    "with_retry": lambda: ToolNode([send]).with_retry(),
    "with_config": lambda: ToolNode([send]).with_config(tags=["x"]),
    "twice bound": lambda: ToolNode([send]).with_retry().with_config(tags=["x"]),
    "sequence": lambda: RunnablePassthrough() | ToolNode([send]),
    "lambda and ToolNode": lambda: RunnableLambda(lambda s: s) | ToolNode([send]),
    "parallel": lambda: RunnableParallel(messages=ToolNode([send])),
    "the tool itself": lambda: RunnableLambda(lambda s: {"to": "boss"}) | send,
    "a tool's invoke": lambda: send.invoke,
    "a tool node's invoke": lambda: ToolNode([send]).invoke,
    "a graph's invoke": lambda: inner_graph().invoke,
    "a graph's ainvoke": lambda: subgraph_by_hand().ainvoke,
    "task": lambda: task(by_hand),
    "generator": lambda: RunnableGenerator(by_hand_streaming),
    "object of a framework": lambda: type("Calls", (BasicToolNode,), {"__module__": "langchain.somewhere"})([]),
    "function": lambda: by_hand,
    "partial": lambda: functools.partial(by_hand),
    "function around a ToolNode": lambda: calls_a_tool_node,
    "async function around a ToolNode": lambda: acalls_a_tool_node,
    "BasicToolNode": lambda: BasicToolNode([send]),
    "method": lambda: Office([send]).work,
    "subgraph": inner_graph,
    "subgraph by hand": subgraph_by_hand,
}


@pytest.mark.filterwarnings("ignore:The 'config' parameter")
@pytest.mark.parametrize("name", HOLES)
@pytest.mark.parametrize("world", [False, True], ids=["no world", "beside a world"])
def test_undeclared_tools_are_refused_before_the_run(name, world):
    SENT.clear()
    agent = loop(HOLES[name](), name="tools")
    with pytest.raises(AgentContractError, match=r"(tool send|node tools).* N times") as raised:
        amc(agent, step_after=["tools"], **({"environment": sum_world} if world else {}))
    assert all(way in str(raised.value) for way in ("tools={", "@effect(", "stateless_tools=True"))
    assert len(str(raised.value)) <= 400
    assert SENT == []


@pytest.mark.filterwarnings("ignore:The 'config' parameter")
@pytest.mark.parametrize("name", HOLES)
def test_it_runs_once_its_node_is_declared_or_everything_is(name):
    agent = loop(HOLES[name]())
    amc(agent, tools={"tools": "read"}, step_after=["tools"])
    amc(agent, stateless_tools=True, step_after=["tools"])
    amc(agent, stateless_tools=True, step_after=["tools"], environment=sum_world)
    with pytest.raises(AgentContractError, match=r"own world: (tools|send)\b.* need environment="):
        amc(agent, tools={"tools": "world"}, step_after=["tools"])


@pytest.mark.parametrize("name", ["ToolNode", "with_retry", "twice bound", "sequence", "subgraph", "with_config"])
def test_a_node_of_which_all_tools_are_declared_needs_no_declaration_of_its_own(name):
    agent = loop(HOLES[name]())
    run = amc(agent, "uniform", tools={"send": "read"}, step_after=["tools"], n_particles=3).run(start())
    assert [output["messages"][-1].text for output in run.outputs] == ["done"] * 3


# --- declarations -----------------------------------------------------------------------------------------


def refused(agent, **settings):
    """Return the error of `amc` for an agent; empty if it accepts the agent."""
    try:
        amc(agent, **settings)
    except AgentContractError as error:
        return str(error)
    return ""


@effect("read")
def look(at: str) -> str:
    """Look."""
    return at


@effect("read")
async def alook(at: str) -> str:
    """Look."""
    return at


@effect("read")
@tool
def above(at: str) -> str:
    """Look."""
    return at


@tool
@effect("read")
async def below(at: str) -> str:
    """Look."""
    return at


@effect("read")
class Looks(BaseTool):
    name: str = "looks"
    description: str = "Look."

    def _run(self, at: str) -> str:
        return at


@pytest.mark.parametrize("declared", [look, alook, above, below, Looks(), tool(look), tool(alook)])
def test_the_decorator_declares_a_tool_whatever_it_is_made_of(declared):
    assert refused(create_agent(model, [declared])) == ""
    name = getattr(declared, "name", None) or declared.__name__
    assert f"own world: {name}." in refused(create_agent(model, [declared]), tools={name: "world"})


def test_the_decorator_declares_nodes_too():
    @effect("read")
    def node(state):
        return {"messages": [ToolMessage("seen", tool_call_id="1")]}

    class Node:
        def __call__(self, state):
            return node(state)

    assert refused(loop(node)) == ""
    assert refused(loop(effect("read")(Node()))) == ""
    assert refused(loop(effect("read")(RunnableLambda(by_hand)) | RunnableLambda(node))) == ""
    assert "node tools" in refused(loop(effect("read")(RunnableLambda(by_hand)) | RunnableLambda(by_hand)))
    assert "need environment=" in refused(loop(effect("world")(lambda state: state)))


def test_a_declaration_by_name_goes_before_the_tools_own_and_that_before_its_nodes():
    agent = create_agent(model, [say])
    assert "need environment=" in refused(agent)
    assert refused(agent, tools={"say": "read"}) == ""
    assert "need environment=" in refused(agent, tools={"tools": "read"})
    assert "need environment=" in refused(agent, stateless_tools=True)
    assert refused(create_agent(model, [send]), tools={"tools": "read"}) == ""
    assert "own world: send" in refused(create_agent(model, [send]), tools={"tools": "world"})


def test_an_object_that_cannot_be_marked_is_an_error_with_an_alternative():
    with pytest.raises(ConfigurationError, match=r"cannot mark a method.*tools=\{name: 'read'\}"):
        effect("read")(Office([]).work)


@pytest.mark.parametrize(("kind", "says"), [("Commit", "'Commit'"), ("write", "'write'"), (None, "None")])
def test_only_known_effects_are_taken(kind, says):
    with pytest.raises(ConfigurationError, match=says):
        effect(kind)
    with pytest.raises(ConfigurationError, match=says):
        amc(create_agent(model, [send]), tools={"send": kind})


def test_tools_are_declared_by_name():
    with pytest.raises(ConfigurationError, match=r'as \{"search": "read"\}, got \[Struct'):
        amc(create_agent(model, [send]), tools=[send])


def test_an_unknown_name_is_refused_with_the_nearest():
    agent = create_agent(model, [send])
    message = refused(agent, tools={"sent": "read"})
    assert "'sent'" in message
    assert "did you mean 'send'?" in message
    assert "It has model, send, tools" in message


# --- the search for tools --------------------------------------------------------------------------------------


def test_a_tool_must_be_declared_even_with_a_world_and_world_tools_need_a_world():
    agent = create_agent(tool_caller(1), [say, send])
    message = refused(agent, environment=sum_world)
    assert "tool send" in message
    assert "say" not in message
    assert refused(agent, environment=sum_world, tools={"send": "read"}) == ""
    assert refused(agent, environment=sum_world, stateless_tools=True) == ""
    assert "own world: say." in refused(agent, stateless_tools=True)
    assert "own world: tools." in refused(number_agent())


def test_tools_of_providers_and_middleware_are_tools():
    class Posting(AgentMiddleware):
        tools = (send,)

    assert "tool web_search" in refused(create_agent(model, [look, {"type": "web_search"}]))
    assert "tool google_search" in refused(create_agent(model, [look, {"google_search": {}}]))
    assert refused(create_agent(model, [look, {"type": "web_search"}]), tools={"web_search": "read"}) == ""
    assert "tool send" in refused(create_agent(model, [look], middleware=[Posting()]))


def test_tools_of_frameworks_that_only_change_the_agents_state_need_no_declaration():
    class Answer(BaseModel):
        days: int

    assert refused(create_agent(model, [look], middleware=[TodoListMiddleware()])) == ""
    assert refused(create_agent(model, [look], response_format=ToolStrategy(Answer))) == ""
    todo = create_agent(model, [look], middleware=[TodoListMiddleware()])
    assert "own world: write_todos." in refused(todo, tools={"write_todos": "world"})


@pytest.mark.parametrize(
    ("module", "backend", "known"),
    [
        ("langgraph_swarm.handoff", None, True),
        ("langgraph_supervisor.handoff", None, True),
        ("deepagents.middleware.filesystem", "deepagents.backends.state", True),
        ("deepagents.middleware.filesystem", "deepagents.backends.filesystem", False),
        ("langchain_community.tools", None, False),
    ],
)
def test_tools_of_packages_that_are_not_installed_are_known_by_their_modules(module, backend, known):
    self = SimpleNamespace(backend=type("Backend", (), {"__module__": backend})())

    def write(text: str) -> str:
        """Write."""
        return f"{self.backend}: {text}"

    write.__module__ = module
    assert ("tool write" in refused(create_agent(model, [look, tool(write)]))) is not known


def test_tools_are_found_in_nodes_that_do_not_pause():
    searching = model.bind(tools=[{"type": "web_search"}, {"type": "function", "function": {"name": "known"}}])
    subagent = create_agent(model, [send], name="clerk")

    def clerk(state):
        return subagent.invoke(state)

    def agent(node):
        builder = StateGraph(MessagesState)
        builder.add_node("other", node)
        builder.add_node("tools", effect("read")(lambda state: state))
        builder.add_edge(START, "other")
        builder.add_edge("other", "tools")
        return builder.compile()

    message = refused(agent(lambda state: {"messages": searching.invoke(state["messages"])}))
    assert "tool web_search" in message
    assert "known" not in message
    assert "tool send" in refused(agent(clerk))
    assert "tool send" in refused(agent(BasicToolNode([send])))
    assert "tool send" in refused(agent(ToolNode([send])))
    assert refused(agent(clerk), tools={"other": "read"}) == ""
    assert "node tools" in refused(loop(by_hand), step_after=["agent"], tools={"agent": "read"})


class Prepares(AgentMiddleware):
    def before_model(self, state, runtime):
        return None


HARMLESS = {
    "create_agent's model": lambda: (create_agent(model, [], middleware=[Prepares()]), "model"),
    "create_agent's middleware": lambda: (create_agent(model, [], middleware=[Prepares()]), "Prepares.before_model"),
    "a model behind a prompt": lambda: (loop(ChatPromptTemplate.from_messages(["{messages}"]) | model), "tools"),
    "LAC's node": lambda: (loop(actor_critic_node(model, "uniform")), "tools"),
    "text_agent's model": lambda: (number_agent(), "model"),
    "a subagent without tools": lambda: (loop(create_agent(model, [])), "tools"),
    "a population": lambda: (loop(amc(number_agent(), environment=sum_world)), "tools"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_parts_need_no_declaration(name):
    agent, node = HARMLESS[name]()
    world = {"environment": sum_world} if name == "text_agent's model" else {}
    assert refused(agent, step_after=[node], **world) == ""


def test_bound_tool_nodes_end_a_step_by_default():
    agent = loop(ToolNode([send]).with_retry(), name="act")
    run = amc(agent, "uniform", tools={"send": "read"}, n_particles=2, resample=EveryStep()).run(start())
    assert run.history[0].step == 1


def test_the_declared_run_for_real():
    SENT.clear()
    amc(loop(ToolNode([send])), "uniform", tools={"send": "read"}, n_particles=5, resample=Never()).invoke(
        {"messages": [HumanMessage("go")]}
    )
    assert SENT == ["boss"] * 5
