"""The official patterns of several agents, and deep agents, plain and wrapped as a whole.

Supervisors, swarms and deep agents come in packages of their own, which `.ci/test-deepagents` installs.
"""

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents.testing.scripted import ScriptedChatModel
from tests.like_plain.agents import HELLO, LOOK, MORE, call, looking, scripted
from tests.like_plain.differences import case, differences
from tests.like_plain.play import Scenario, play


def member(parts, name, model=LOOK, tools=(), **options):
    return create_agent(model, [looking(parts.ledger), *tools], name=name, **options)


def handing_over(to):
    """A model that hands over once after each message of a human, and then answers."""

    def respond(messages):
        last = max(n for n, message in enumerate(messages) if message.type == "human")
        if any(isinstance(message, ToolMessage) and "ransfer" in message.text for message in messages[last:]):
            return AIMessage("Done.")
        return AIMessage("", tool_calls=[call(to)])

    return ScriptedChatModel(respond=respond)


def subagents_as_tools(parts):
    researcher = create_agent(LOOK, [looking(parts.ledger)])

    @tool
    def research(question: str) -> str:
        """Ask the researcher."""
        return researcher.invoke({"messages": [("user", question)]})["messages"][-1].text

    model = scripted(call("research", question="a?"), "Done.")
    return create_agent(model, [research], checkpointer=parts.saver)


def supervisor(parts):
    langgraph_supervisor = pytest.importorskip("langgraph_supervisor")
    members = [member(parts, "researcher"), member(parts, "writer")]
    team = langgraph_supervisor.create_supervisor(members, model=handing_over("transfer_to_researcher"))
    return team.compile(checkpointer=parts.saver)


def swarm(parts):
    langgraph_swarm = pytest.importorskip("langgraph_swarm")
    hand_over = langgraph_swarm.create_handoff_tool(agent_name="bob")
    alice = member(parts, "alice", handing_over("transfer_to_bob"), [hand_over])
    team = langgraph_swarm.create_swarm([alice, member(parts, "bob")], default_active_agent="alice")
    return team.compile(checkpointer=parts.saver)


def deep_agent(parts):
    deepagents = pytest.importorskip("deepagents")
    model = scripted(
        call("write_file", file_path="/notes.md", content="a note"),
        call("read_file", file_path="/notes.md"),
        call("look", word="a"),
        "Done.",
    )
    return deepagents.create_deep_agent(model=model, tools=[looking(parts.ledger)], checkpointer=parts.saver)


TEAMS = {
    "subagents as tools": Scenario(subagents_as_tools, [HELLO, MORE]),
    "supervisor": Scenario(supervisor, [HELLO, MORE], {"step_after": ["researcher", "writer"]}),
    "swarm": Scenario(swarm, [HELLO, MORE], {"step_after": ["alice", "bob"]}),
    "deep agent": Scenario(deep_agent, [HELLO, MORE]),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize("calls", ["invoke", "ainvoke", "stream", "abatch", "events_v2"])
@pytest.mark.parametrize("team", TEAMS)
def test_a_wrapped_team_is_like_the_plain_one(team, calls, particles):
    modes = "values+custom" if calls == "stream" else "-"
    called = case(team, calls, modes, particles=particles)
    plain, wrapped = (play(TEAMS[team], called, wrapped=wrapped) for wrapped in (False, True))
    assert differences(plain, wrapped, particles) == {}
