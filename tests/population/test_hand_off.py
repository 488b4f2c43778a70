"""Agents that hand off to another agent of the surrounding graph, like members of a swarm."""

from typing import Annotated

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from amc_agents import AmcSettings, effect
from amc_agents.errors import AgentContractError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import start
from tests.variants import variants


@tool
@effect("read")
def transfer_to_bob(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Ask bob."""
    answer = ToolMessage("transferred", name="transfer_to_bob", tool_call_id=tool_call_id)
    return Command(goto="bob", graph=Command.PARENT, update={"messages": [answer]})


@tool
@effect("read")
def think() -> str:
    """Think."""
    return "thought"


def hands_off_or_answers(messages):
    """Half of the particles hand off, after a step of thinking."""
    if not isinstance(messages[-1], ToolMessage):
        return AIMessage("hm", tool_calls=[{"name": "think", "args": {}, "id": "think"}])
    if particle_rng().random() < 0.5:
        return AIMessage("over to bob", tool_calls=[{"name": "transfer_to_bob", "args": {}, "id": "over"}])
    return AIMessage("alice answers")


class PrefersWord:
    """A critic that prefers trajectories with a given word in their last action."""

    predicts = "return"

    def __init__(self, word):
        self.word, self.seen = word, []

    async def values(self, trajectories):
        self.seen += [trajectory.steps[-1].action for trajectory in trajectories]
        return np.array([float(self.word in trajectory.steps[-1].action) for trajectory in trajectories])


def alice(word, **settings):
    agent = create_agent(ScriptedChatModel(respond=hands_off_or_answers), [think, transfer_to_bob], name="alice")
    return amc(
        agent, PrefersWord(word), **arguments(**{"n_particles": 8, "resample": AtSteps(1), "seed": 0, **settings})
    )


def team(member):
    builder = StateGraph(MessagesState)
    builder.add_node("alice", member, destinations=("bob",))
    builder.add_node("bob", lambda state: {"messages": [AIMessage("bob answers")]})
    builder.add_edge(START, "alice")
    return builder.compile()


@variants("nested", ["as a node", "called in a node"])
@variants("is_async", [True, False])
async def test_the_winners_hand_off_is_executed(is_async, nested):
    member = alice("transfer")
    graph = team(member if nested == "as a node" else (lambda state: member.invoke(state)))
    output = await graph.ainvoke(start()) if is_async else graph.invoke(start())
    assert [message.text for message in output["messages"][1:]] == ["transferred", "bob answers"]


async def test_other_particles_hand_offs_are_not_executed():
    output = await team(alice("alice")).ainvoke(start())
    assert output["messages"][-1].text == "alice answers"


async def test_a_hand_off_ends_a_particle_as_an_answer_does():
    critic = PrefersWord("transfer")
    agent = create_agent(ScriptedChatModel(respond=hands_off_or_answers), [think, transfer_to_bob])
    events = []
    graph = team(
        amc(agent, critic, n_particles=8, resample=EveryStep(), seed=0, settings=AmcSettings(quorum=8, finished="keep"))
    )
    async for _, mode, event in graph.astream(start(), stream_mode=["custom", "messages"], subgraphs=True):
        events.append((mode, event))
    (run,) = [event["run"] for mode, event in events if mode == "custom" and event["type"] == "amc.run"]
    assert run.population.failed == (False,) * 8
    assert all(trajectory.done for trajectory in run.population.trajectories)
    assert "transfer_to_bob" in run.best.steps[-1].action
    assert any("transfer_to_bob" in action for action in critic.seen)
    assert any("alice" in action for action in critic.seen)
    assert [event[0].text for mode, event in events if mode == "messages"][-2:] == ["over to bob", "bob answers"]


async def test_the_offspring_of_a_hand_off_does_not_call_the_model_again():
    class PrefersHandOffs(PrefersWord):
        async def values(self, trajectories):
            return 100 * await super().values(trajectories)

    calls = []

    def the_first_hands_off(messages):
        calls.append(messages)
        name = "think" if len(calls) > 1 else "transfer_to_bob"
        return AIMessage("hm", tool_calls=[{"name": name, "args": {}, "id": "1"}])

    agent = create_agent(ScriptedChatModel(respond=the_first_hands_off), [think, transfer_to_bob])
    for seed in range(5):
        calls.clear()
        member = amc(
            agent,
            PrefersHandOffs("transfer"),
            n_particles=8,
            resample=AtSteps(1),
            seed=seed,
            settings=AmcSettings(finished="keep"),
            beta=1.0,
            select="sample",
        )
        output = await team(member).ainvoke(start())
        assert output["messages"][-1].text == "bob answers"
        assert len(calls) == 8


@variants("is_async", [True, False])
async def test_a_hand_off_without_a_surrounding_graph_is_refused(is_async):
    with pytest.raises(AgentContractError, match=r"handed off to 'bob'.*no surrounding graph"):
        await alice("transfer").ainvoke(start()) if is_async else alice("transfer").invoke(start())
