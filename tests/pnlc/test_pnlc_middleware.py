"""PNLC's middleware inside real agents of `create_agent`."""

from __future__ import annotations

import asyncio
import json

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents import CritiqueRefine
from amc_agents.critics.goal.checkpoint import Calibration
from amc_agents.critics.goal.embeddings import HashedWords
from amc_agents.errors import ConfigurationError, DecisionError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.pnlc.prompts import PnlcPrompts
from amc_agents.testing.scripted import ScriptedChatModel
from tests.critics.goal.test_goal import checkpoint_for
from tests.pnlc.pnlc_agents import AGREES, WARNS, Reaches, go, mind, walker
from tests.variants import variants

GIVEN = {"messages": [HumanMessage("Get rich.")]}

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def an_agent(critic=None, *, model=None, tools=(go,), before=(), after=(), agent=None, **settings):
    middleware = [*before, CritiqueRefine(critic or Reaches(WARNS), **settings), *after]
    return create_agent(model or walker(), list(tools), middleware=middleware, **(agent or {}))


def invoke(agent, *, sync, given=GIVEN, **more):
    return agent.invoke(given, **more) if sync else asyncio.run(agent.ainvoke(given, **more))


def stream(agent, mode, *, sync, **more):
    async def chunks():
        return [one async for one in agent.astream(GIVEN, stream_mode=mode, **more)]

    return list(agent.stream(GIVEN, stream_mode=mode, **more)) if sync else asyncio.run(chunks())


@both_ways
def test_each_turn_is_reconsidered(sync):
    critic, seen = Reaches(WARNS), []
    output = invoke(an_agent(critic, model=walker(seen=seen), agent={"system_prompt": "Walk."}), sync=sync)
    assert [message.text for message in output["messages"]] == [
        "Get rich.", "I go right.", "you went right", "done: you went right"
    ]  # fmt: skip
    assert set(output) == {"messages"}
    assert [thought for _, thought, _ in critic.asked] == ["I go left.", "done: you went right"]
    first, last = (trajectory for trajectory, _, _ in critic.asked)
    assert first.task.instruction == "Get rich.", "the system prompt is not in the state that amc reads"
    assert (last.steps[0].thought, last.steps[0].observation) == ("I go right.", "you went right")
    reply = next(messages for kind, messages in seen if kind == "reply")
    assert reply[0].text == "Walk."
    kept = invoke(an_agent(Reaches(AGREES)), sync=sync)
    assert kept["messages"][-1].text == "done: you went left"


@both_ways
def test_nothing_is_executed_before_the_decision(sync):
    done = []

    @tool
    def give_away(all_of: str) -> str:
        """Cannot be undone."""
        done.append(all_of)
        return "gone"

    def turn(messages):
        if any(isinstance(message, ToolMessage) for message in messages):
            return "done"
        return AIMessage("I go left.", tool_calls=[{"name": "give_away", "args": {"all_of": "it"}, "id": "1"}])

    def act(messages):
        assert done == []
        return AIMessage("", tool_calls=[{"name": "go", "args": {"to": "right"}, "id": "2"}])

    output = invoke(an_agent(model=mind(turn, act=act), tools=[go, give_away]), sync=sync)
    assert done == [], "the draft wanted to, and was given up"
    assert output["messages"][2].text == "you went right"


@both_ways
def test_the_user_sees_only_the_final_messages(sync):
    agent = an_agent(agent={"checkpointer": InMemorySaver()})
    config = {"configurable": {"thread_id": "1"}}
    seen = stream(agent, ["messages", "values", "updates", "custom"], sync=sync, config=config)
    messages = [chunk[0] for mode, chunk in seen if mode == "messages"]
    assert [message.text for message in messages] == ["I go right.", "you went right", "done: you went right"]
    told = json.dumps([message.model_dump() for message in messages], default=str)
    assert not any(draft in told for draft in ("left", "rich, way", "Diagnosis"))
    states = [chunk["messages"] for mode, chunk in seen if mode == "values"]
    assert "left" not in json.dumps(states, default=str)
    events = [chunk for mode, chunk in seen if mode == "custom"]
    assert [one["type"] for one in events] == ["pnlc.decision"] * 2
    assert [one["thought"] for one in events[0]["thoughts"]] == ["I go left.", "I go right."]
    assert agent.get_state(config).values["pnlc_decisions"] == events
    bare = stream(an_agent(keep_decisions=False), ["values", "updates"], sync=sync)
    assert "left" not in json.dumps(bare, default=str)


@both_ways
def test_tokens_of_a_streaming_model_do_not_leak(sync):
    proposer = ScriptedChatModel(respond=lambda messages: "Goal: Crafted 1 oak gate\nGoal: Got 2 oak")
    deciding = CritiqueRefine(Reaches(), refine=False, k=3, proposer=proposer)
    agent = create_agent(EmbeddedChatModel(streaming=True, max_tokens=12), middleware=[deciding])
    seen = stream(agent, ["messages", "values"], sync=sync)
    texts = [chunk[0].text for mode, chunk in seen if mode == "messages"]
    (final,) = [chunk for mode, chunk in seen if mode == "values"][-1:]
    assert "".join(texts) == final["messages"][-1].text


@both_ways
def test_a_person_reviews_only_the_final_turn(sync):
    asks = HumanInTheLoopMiddleware(interrupt_on={"go": True})
    agent = an_agent(before=[asks], agent={"checkpointer": InMemorySaver()})
    output = invoke(agent, sync=sync, config={"configurable": {"thread_id": "1"}})
    (interrupt,) = output["__interrupt__"]
    assert [one["args"] for one in interrupt.value["action_requests"]] == [{"to": "right"}]


@both_ways
def test_a_goal_proposal_that_cannot_be_parsed_ends_the_run_and_is_quoted(sync):
    asked = []

    def respond(messages):
        asked.append(messages)
        return "I would rather not."

    with pytest.raises(DecisionError, match=r"goal proposer .*twice: 'I would rather not"):
        invoke(an_agent(proposer=ScriptedChatModel(respond=respond)), sync=sync)
    assert len(asked) == 4, "both kinds of goals, each twice"


def test_invalid_settings_are_refused_by_the_constructor():
    with pytest.raises(ConfigurationError, match="m must be a number"):
        CritiqueRefine(Reaches(), m=0)
    with pytest.raises(ConfigurationError, match="pnlc does not take"):
        CritiqueRefine("embedded:crafting")
    with pytest.raises(ConfigurationError, match="'refine' has the fields"):
        CritiqueRefine(Reaches(), prompts=PnlcPrompts(refine="Think again."))


@both_ways
@variants("calibrated", [False, True])
def test_with_a_checkpoint_by_its_string(sync, calibrated, tmp_path):
    """A checkpoint as `amc train goal` writes it: the agent reads its likelihoods, or probabilities if calibrated."""
    changes = {"calibration": Calibration((0.0, 1.0), (0.625, 0.625))} if calibrated else {}
    asyncio.run(checkpoint_for(HashedWords(64), 64, **changes)).save(tmp_path / "goals")
    critic = f"goal:{tmp_path / 'goals'}"
    agent = create_agent(walker(), [go], middleware=[CritiqueRefine(critic)], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    invoke(agent, sync=sync, config=config)
    decision = agent.get_state(config).values["pnlc_decisions"][0]
    first = decision["thoughts"][0]
    likelihoods = [goal["likelihood"] for goal in first["goals"]]
    assert likelihoods == [0.625] * 4 if calibrated else len(set(likelihoods)) == 4
    assert all(f"likelihood {one:.2f}" in first["critique"] for one in likelihoods)
    assert decision["critic"] == critic
