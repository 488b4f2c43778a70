"""PNLC's chat model and node: real LangChain models, agents and graphs, scripted and embedded."""

from __future__ import annotations

import asyncio
import json
import operator
from itertools import cycle
from typing import Annotated, Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langchain_tests.unit_tests import ChatModelUnitTests
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel

from amc_agents import AtSteps, amc, critique_refine_model, critique_refine_node
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.models.seeding import particle_rng
from amc_agents.pnlc.model import CritiqueRefineModel, carrying, described
from amc_agents.pnlc.prompts import PnlcPrompts
from amc_agents.pnlc.types import Proposed
from amc_agents.runtime.metering import PolicyMeter
from amc_agents.runtime.text_agent import text_agent
from amc_agents.usage import Meter, Usage, record
from tests.lac.lac_fakes import virtual_seconds
from tests.pnlc.pnlc_agents import AGREES, KEEP, USAGE, WARNS, Reaches, go, kind_of, mind, refine, walker
from tests.population.worlds import TASK, SumWorld

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])

LEFT, RIGHT = "Thought: I go left.\nAction: left", "Action: right"


def text_mind(**more):
    return mind(lambda messages: LEFT, act=lambda messages: RIGHT, **more)


def ask(model, *messages, sync=False, **given):
    conversation = list(messages) or [HumanMessage("which?")]
    return model.invoke(conversation, **given) if sync else asyncio.run(model.ainvoke(conversation, **given))


class TestStandard(ChatModelUnitTests):
    """LangChain's own suite. What sets up sampling is the actor's, so LangChain's standard settings are not ours."""

    @property
    def chat_model_class(self):
        return CritiqueRefineModel

    @property
    def chat_model_params(self):
        model = critique_refine_model(ChatOpenAI(model="small", api_key="none"), Reaches(), config=Config())
        return {name: getattr(model, name) for name in ("actor", "critics", "settings")}


@both_ways
def test_the_action_changes_exactly_when_the_critic_warns(sync):
    kept = ask(critique_refine_model(text_mind(), Reaches(AGREES)), sync=sync)
    changed = ask(critique_refine_model(text_mind(), Reaches(WARNS)), sync=sync)
    assert kept.text == LEFT
    assert changed.text == "Thought: I go right.\nAction: right", "the history has the thought that was acted on"


@both_ways
def test_requests_and_their_conversations(sync):
    seen, critic = [], Reaches(WARNS)
    conversation = [SystemMessage("Be brief."), HumanMessage("Find it."), AIMessage("look"), HumanMessage("A fork.")]
    ask(critique_refine_model(text_mind(seen=seen), critic), *conversation, sync=sync)
    assert [kind for kind, _ in seen] == ["turn", "goals", "goals", "reply", "action"]
    turn, good, _, reply, action = (messages for _, messages in seen)
    assert turn == conversation
    assert [message.type for message in good] == ["human"], "proposing goals is not the agent's part"
    assert [message.type for message in reply] == ["system", "human"], "the agent answers as itself"
    assert "Find it.\n\nAction: look\nObservation: A fork." in reply[1].text
    assert "- bad, likelihood 0.90: You are poor, way 1." in reply[1].text
    assert action[:-1] == conversation[:-1], "no second message of the user's in a row"
    assert action[-1].text.startswith("A fork.\n\nYou have thought")
    ((trajectory, thought, goals),) = critic.asked
    assert (trajectory.task.instruction, trajectory.steps[0].observation) == ("Find it.", "A fork.")
    assert (thought, len(goals)) == ("I go left.", 4)


@both_ways
def test_the_answer_is_the_final_message_with_a_new_id(sync):
    said = AIMessage(LEFT, id="mine", usage_metadata=USAGE, additional_kwargs={"kept": 1},
                     response_metadata={"model_name": "m"})  # fmt: skip
    answer = ask(critique_refine_model(mind(lambda messages: said), Reaches(AGREES)), sync=sync)
    assert (answer.content, answer.additional_kwargs) == (LEFT, {"kept": 1})
    assert answer.id not in (None, "mine")
    assert answer.usage_metadata is None
    told = answer.response_metadata["pnlc"]
    assert answer.response_metadata["model_name"] == "m"
    assert told == {
        "critic": "Reaches",
        "round_trips": 4,
        "notes": [],
        "usage": {
            "policy": {"calls": 2, "input_tokens": 10, "output_tokens": 2, "cached_tokens": 0},
            "world model": {"calls": 2, "input_tokens": 10, "output_tokens": 2, "cached_tokens": 0},
        },
        "chosen": 0,
        "thoughts": 1,
    }
    changed = ask(critique_refine_model(text_mind(), Reaches(WARNS)), sync=sync)
    assert "left" not in json.dumps(changed.model_dump(), default=str), "a thought that was given up is not in it"


async def test_a_conversation_that_ends_with_a_tool_gets_a_further_message():
    seen = []
    model = critique_refine_model(text_mind(seen=seen), Reaches(WARNS))
    called = AIMessage("", tool_calls=[{"name": "go", "args": {}, "id": "1"}])
    await model.ainvoke([HumanMessage("?"), called, ToolMessage("there", tool_call_id="1")])
    assert [message.type for message in seen[-1][1]] == ["human", "ai", "tool", "human"]
    blocks = [{"type": "text", "text": "what is this?"}, {"type": "image", "url": "https://example.org/a.png"}]
    await model.ainvoke([HumanMessage(blocks)])
    assert [block["type"] for block in seen[-1][1][-1].content] == ["text", "image", "text"]


def test_round_trips_are_sequential():
    class Slow(Reaches):
        async def reach(self, trajectory, thought, goals):
            await asyncio.sleep(0.1)
            return await super().reach(trajectory, thought, goals)

    model = critique_refine_model(text_mind().model_copy(update={"delay": 0.1}), Slow(WARNS))
    answer, seconds = virtual_seconds(model.ainvoke("?"))
    assert answer.response_metadata["pnlc"]["round_trips"] == 5
    assert seconds == pytest.approx(0.5)


# Agents with tools, and reasoning models


@both_ways
def test_the_thought_of_an_agent_with_tools_is_the_text_before_the_call(sync):
    for table, way in ((WARNS, "right"), (AGREES, "left")):
        critic = Reaches(table)
        agent = create_agent(critique_refine_model(walker(), critic), [go])
        given = {"messages": [HumanMessage("Get rich.")]}
        output = agent.invoke(given) if sync else asyncio.run(agent.ainvoke(given))
        called = output["messages"][1]
        assert [message.text for message in output["messages"]] == [
            "Get rich.", f"I go {way}.", f"you went {way}", f"done: you went {way}"
        ]  # fmt: skip
        assert called.tool_calls[0]["args"] == {"to": way}
        assert critic.asked[0][1] == "I go left."


REASONED = [
    {"type": "reasoning", "reasoning": "I go left."},
    {"type": "text", "text": ""},
]


@pytest.mark.parametrize(
    "message",
    [
        {"content": REASONED},
        {"content": REASONED[:1]},
        {"content": "", "additional_kwargs": {"reasoning_content": "I go left."}},
        {
            "content": [{"type": "thinking", "thinking": "I go left.", "signature": "x"}],
            "response_metadata": {"model_provider": "anthropic"},
        },
        {
            "content": [{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "I go left."}]}],
            "response_metadata": {"model_provider": "openai"},
        },
    ],
    ids=["blocks", "no text", "DeepSeek", "Anthropic", "OpenAI"],
)
async def test_the_thought_of_a_reasoning_model_is_its_reasoning(message):
    critic = Reaches(AGREES)
    said = AIMessage(**message, tool_calls=[{"name": "go", "args": {"to": "left"}, "id": "1"}])
    answer = await critique_refine_model(mind(lambda messages: said), critic).ainvoke("?")
    assert critic.asked[0][1] == "I go left."
    assert answer.content == message["content"]
    text = message["content"] + [{"type": "text", "text": "left"}] if message["content"] else "left"
    plain = AIMessage(**{**message, "content": text})
    answer = await critique_refine_model(mind(lambda messages: plain), critic).ainvoke("?")
    assert (critic.asked[1][1], answer.content) == ("I go left.", text)


async def test_reasoning_of_the_acting_request_is_unchanged():
    blocks = [{"type": "reasoning", "reasoning": "So I go right.", "extras": {"signature": "x"}}]
    call = {"name": "go", "args": {"to": "right"}, "id": "1"}
    model = mind(lambda messages: LEFT, act=lambda messages: AIMessage(blocks, tool_calls=[call]))
    answer = await critique_refine_model(model, Reaches(WARNS)).ainvoke("?")
    assert answer.content == blocks, "a provider refuses reasoning that was changed"


def test_a_final_message_without_a_thought_gets_the_thought():
    call = {"name": "go", "args": {}, "id": "1"}
    assert carrying(AIMessage("", tool_calls=[call]), "so").content == "so"
    assert carrying(AIMessage("mine", tool_calls=[call]), "so").content == "mine"
    block = {"type": "tool_use", "name": "go", "input": {}, "id": "1"}
    assert carrying(AIMessage([block], tool_calls=[call]), "so").content == [{"type": "text", "text": "so"}, block]
    assert carrying(AIMessage("Action: up"), "so").content == "Thought: so\nAction: up"
    assert carrying(AIMessage("You are rich."), "so").content == "You are rich.", "an answer to the user is left alone"


def test_tools_are_bound_for_turns_and_described_in_words_otherwise():
    seen = []

    class Tooled(ChatOpenAI):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            seen.append((kind_of(messages), kwargs, stop, messages))
            return text_mind()._result(messages)

    policy = Tooled(model="small", api_key="none")
    bound = critique_refine_model(policy, Reaches(WARNS)).bind_tools([go], tool_choice="any")
    ask(bound, stop=["\n\n"])
    assert [kind for kind, *_ in seen] == ["turn", "goals", "goals", "reply", "action"]
    for kind, kwargs, stop, messages in seen:
        own = kind in ("turn", "action")
        assert ("tools" in kwargs, "tool_choice" in kwargs, stop) == (own, own, ["\n\n"] if own else None)
        assert ("- go: Go somewhere." in messages[-1].text) == (not own)
    assert described([{"name": "a", "description": "b"}, {"type": "web_search"}]) == "The agent's tools:\n- a: b"
    assert described([]) == ""


@both_ways
def test_a_structured_answer_is_reconsidered_too(sync):
    class Verdict(BaseModel):
        """A verdict."""

        guilty: bool

    def saying(guilty):
        return AIMessage("hm", tool_calls=[{"name": "Verdict", "args": {"guilty": guilty}, "id": "1"}])

    model = mind(lambda messages: saying(True), act=lambda messages: saying(False), reply=lambda _: refine("no"))
    structured = critique_refine_model(model, Reaches()).with_structured_output(Verdict)
    found = structured.invoke("guilty?") if sync else asyncio.run(structured.ainvoke("guilty?"))
    assert found == Verdict(guilty=False)

    async def chunks():
        return [chunk async for chunk in structured.astream("guilty?")]

    assert (list(structured.stream("guilty?")) if sync else asyncio.run(chunks())) == [Verdict(guilty=False)]


# Settings


@both_ways
def test_the_best_of_k_thoughts_for_a_policy_that_reads_no_critique(sync):
    turns = cycle([LEFT, "Thought: I go up.\nAction: up", LEFT])
    seen = []
    model = mind(lambda messages: next(turns), seen=seen)
    critic = Reaches({**WARNS, ("up", "rich"): 0.8, ("up", "poor"): 0.3})
    records = []
    wrapped = critique_refine_model(model, critic, refine=False, k=3).model_copy(update={"sink": records.append})
    assert ask(wrapped, sync=sync).text == "Thought: I go up.\nAction: up"
    assert sorted(kind for kind, _ in seen) == ["goals"] * 2 + ["turn"] * 3
    assert [one["score"] for one in records[0]["thoughts"]] == pytest.approx([-0.8, 0.5])
    assert records[0]["round_trips"] == 2


@both_ways
def test_the_model_judges_itself_without_a_critic(sync):
    seen = []
    replan = critique_refine_model(text_mind(seen=seen), critique="self")
    assert ask(replan, sync=sync).text == "Thought: I go right.\nAction: right"
    assert [kind for kind, _ in seen] == ["turn", "goals", "goals", "estimate", "reply", "action"]
    turns = cycle([LEFT, "Thought: I go up.\nAction: up"])
    plan = critique_refine_model(mind(lambda messages: next(turns)), critique="self", refine=False, k=2)
    assert ask(plan, sync=sync).text == "Thought: I go up.\nAction: up"


async def test_a_likelihood_of_success_without_goals():
    class Odds:
        async def log_odds(self, trajectories):
            return np.array([-3.0 if one.steps[-1].action == "left" else 3.0 for one in trajectories])

    told = []

    def reply(prompt):
        told.append(prompt)
        return refine("I go right.")

    answer = await critique_refine_model(text_mind(reply=reply), Odds(), critique="value").ainvoke("?")
    assert answer.text == "Thought: I go right.\nAction: right"
    assert "a likelihood of success of\n0.05." in told[0]
    with pytest.raises(ConfigurationError, match="`uniform` has none"):
        critique_refine_model(text_mind(), "uniform", critique="value")
    with pytest.raises(ConfigurationError, match="pnlc does not take"):
        critique_refine_model(text_mind(), Odds())


async def test_a_custom_proposer_and_custom_prompts():
    class Own:
        async def propose(self, trajectory, thought, n_positive, n_negative):
            return Proposed(("won",) * n_positive, ("lost",) * n_negative)

    told = []

    def reply(prompt):
        told.append(prompt)
        return KEEP

    prompts = PnlcPrompts(task="It rains.")
    await critique_refine_model(text_mind(reply=reply), Reaches(), proposer=Own(), prompts=prompts).ainvoke("?")
    assert told[0].startswith("It rains.\n\n")
    assert "- good, likelihood 0.50: won" in told[0]
    seen = []
    other = mind(lambda messages: "", seen=seen)
    await critique_refine_model(text_mind(), Reaches(), proposer=other).ainvoke("?")
    assert [kind for kind, _ in seen] == ["goals", "goals"]


def test_the_file_sets_the_effect_of_a_failing_critic():
    class Fails:
        async def reach(self, trajectory, thought, goals):
            raise CriticError("its server is gone")

    with pytest.raises(CriticError, match="gone"):
        ask(critique_refine_model(text_mind(), Fails(), config=Config()))
    answer = ask(critique_refine_model(text_mind(), Fails(), config=Config(on_critic_error="uniform")))
    assert answer.text == LEFT
    assert "gone" in answer.response_metadata["pnlc"]["notes"][0]


# Traces, streams and usage


class Watching(BaseCallbackHandler):
    """All runs that a tracer would see."""

    run_inline = True

    def __init__(self):
        self.runs, self.parents, self.outputs = {}, {}, {}

    def on_chat_model_start(self, serialized, messages, *, run_id, parent_run_id=None, name=None, **told):
        self.runs[run_id], self.parents[run_id] = (name or serialized["name"], told.get("tags")), parent_run_id

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, name=None, **told):
        self.runs[run_id], self.parents[run_id] = (name, told.get("tags")), parent_run_id

    def on_chain_end(self, outputs, *, run_id, **_):
        self.outputs[self.runs[run_id][0]] = outputs


class Counting(MessagesState):
    decided: Annotated[list[dict[str, Any]], operator.add]


@both_ways
def test_a_node_streams_only_its_final_message_and_emits_its_decision(sync):
    watching = Watching()
    graph: Any = StateGraph(Counting)
    graph.add_node("model", critique_refine_node(text_mind(), Reaches(WARNS), decisions="decided"))
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    graph = graph.compile()
    given, config = {"messages": [SystemMessage("Walk."), HumanMessage("?")]}, {"callbacks": [watching]}
    modes = ["messages", "custom", "values"]

    async def chunks():
        return [one async for one in graph.astream(given, config, stream_mode=modes)]

    seen = list(graph.stream(given, config, stream_mode=modes)) if sync else asyncio.run(chunks())
    final = "Thought: I go right.\nAction: right"
    assert [chunk[0].text for mode, chunk in seen if mode == "messages"] == [final]
    (event,) = [chunk for mode, chunk in seen if mode == "custom"]
    assert (event["type"], event["critic"], event["critic_from"]) == ("pnlc.decision", "Reaches", "constructor")
    assert [one["thought"] for one in event["thoughts"]] == ["I go left.", "I go right."]
    assert event["thoughts"][0]["answer"] == refine("I go right.")
    last = [chunk for mode, chunk in seen if mode == "values"][-1]
    assert last["messages"][-1].text == final
    assert last["decided"] == [event]
    json.dumps(event)
    outer = next(run for run, (name, _) in watching.runs.items() if name == "CritiqueRefineModel")
    decision = next(run for run, (name, _) in watching.runs.items() if name == "pnlc.decision")
    assert watching.parents[decision] == outer
    below = [watching.runs[run] for run, parent in watching.parents.items() if parent == decision]
    assert [name for name, _ in below] == ["thought", "goals", "goals", "reflection", "action"]
    assert all("nostream" in tags for _, tags in below)
    assert watching.outputs["pnlc.decision"] == event


def test_requests_are_counted_once_by_role():
    class Counted(Reaches):
        async def reach(self, trajectory, thought, goals):
            record("critic", Usage(calls=1, input_tokens=len(goals)), model="m")
            return await super().reach(trajectory, thought, goals)

    meter, records = Meter(), []
    model = critique_refine_model(text_mind(), Counted(WARNS)).model_copy(update={"sink": records.append})
    ask(model, config={"callbacks": [PolicyMeter(meter)]})
    goals = Usage(2, 10, 2)
    # The turn that follows from the better thought is a script's, which tells no tokens.
    assert meter.read() == {"policy": Usage(3, 15, 3), "critic": Usage(1, 4), "world model": goals}
    assert {role: one["calls"] for role, one in records[0]["usage"].items()} == {
        "policy": 3, "critic": 1, "world model": 2
    }  # fmt: skip
    assert meter.by_model()["critic"]["m"] == Usage(1, 4)


async def test_under_amc_all_is_counted_once_and_particles_differ():
    asked = []

    def turn(messages):
        asked.append(int(particle_rng().integers(10)))
        return f"Action: {asked[-1]}"

    graph = amc(text_agent(critique_refine_model(mind(turn), Reaches())), n_particles=4, resample=AtSteps(1), seed=0,
                environment=lambda state: (SumWorld(2), TASK))  # fmt: skip
    run = await graph.arun({"messages": [HumanMessage(TASK.instruction)]})
    # A kept thought takes two requests: the turn, and the answer to the critique.
    assert run.usage["policy"] == Usage(2 * len(asked), 10 * len(asked), 2 * len(asked))
    assert run.usage["world model"].calls == 2 * len(asked)
    assert len(set(asked[:4])) > 1


# The embedded model
