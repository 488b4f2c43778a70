"""LAC's chat model and node: real LangChain models, agents and graphs, scripted and embedded."""

from __future__ import annotations

import asyncio
import json
import operator
import time
from itertools import count
from typing import Annotated, Any

import numpy as np
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langchain_tests.unit_tests import ChatModelUnitTests
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel

from amc_agents import actor_critic_model, actor_critic_node, amc
from amc_agents.config import Config
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.lac.model import ActorCriticModel
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.metering import PolicyMeter
from amc_agents.runtime.text_agent import text_agent
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.usage import Meter, Usage
from tests.lac.lac_agents import Prefers, Watching, ask, both_ways, go, in_turn
from tests.population.worlds import TASK, SumWorld
from tests.variants import variants


class TestStandard(ChatModelUnitTests):
    """LangChain's own suite. What sets up sampling is the actor's, so LangChain's standard settings are not ours."""

    @property
    def chat_model_class(self):
        return ActorCriticModel

    @property
    def chat_model_params(self):
        model = actor_critic_model(ChatOpenAI(model="small", api_key="none"), "uniform", config=Config())
        return {name: getattr(model, name) for name in ("actor", "critics", "settings")}


@both_ways
def test_the_critic_outvotes_the_prior(sync):
    said = ("Action: left", "Action: left", "Action: right")
    vote = ask(actor_critic_model(in_turn(*said), k=3), sync=sync)
    assert vote.text == "Action: left"
    # 2/3 exp(0) against 1/3 exp(1): the critic's e beats the prior's 2.
    assert ask(actor_critic_model(in_turn(*said), Prefers(right=1.0), k=3), sync=sync).text == "Action: right"
    assert ask(actor_critic_model(in_turn(*said), Prefers(right=0.5), k=3), sync=sync).text == "Action: left"


@both_ways
def test_the_answer_is_the_chosen_message_with_a_new_id(sync):
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    said = [
        AIMessage("look", id="mine", tool_calls=[{"name": "go", "args": {"to": to}, "id": f"call-{to}"}],
                  usage_metadata=usage, response_metadata={"model_name": "m"}, additional_kwargs={"kept": to})
        for to in ("left", "right")
    ]  # fmt: skip
    answer = ask(actor_critic_model(in_turn(*said), Prefers(right=1.0), k=2), sync=sync)
    assert answer.tool_calls == said[1].tool_calls
    assert (answer.content, answer.additional_kwargs) == ("look", {"kept": "right"})
    assert answer.id not in (None, "mine")
    assert answer.usage_metadata is None, "the requests below have it; summing both would count it twice"
    assert answer.response_metadata["model_name"] == "m"
    told = answer.response_metadata["lac"]
    assert told["usage"] == {"policy": {"calls": 2, "input_tokens": 14, "output_tokens": 4, "cached_tokens": 0}}
    assert (told["candidates"], told["samples"], told["critic"]) == (2, 2, "Prefers")
    assert "left" not in json.dumps(answer.model_dump(), default=str)
    assert said[1].id == "mine", "the sampled message itself is left alone"


async def test_the_critic_reads_the_trajectory_as_amc_does():
    critic = Prefers()
    conversation = [
        HumanMessage("Find it."),
        AIMessage("Thought: hm\nAction: look", id="a"),
        HumanMessage("A door."),
    ]
    await actor_critic_model(in_turn("Action: open"), critic, k=1).ainvoke([SystemMessage("Be brief."), *conversation])
    (trajectory,) = critic.asked[0]
    assert trajectory.task.instruction == "Find it.", "an agent's system prompt is not in its state"
    assert [(one.thought, one.action, one.observation) for one in trajectory.steps] == [
        ("hm", "look", "A door."),
        ("", "open", ""),
    ]
    assert not trajectory.done


async def test_a_conversation_of_a_system_message_alone_is_the_task():
    critic = Prefers()
    await actor_critic_model(in_turn("go"), critic, k=1).ainvoke([SystemMessage("Be brief.")])
    assert critic.asked[0][0].task.instruction == "Be brief."


def test_concurrent_samples_take_the_time_of_one():
    model = ScriptedChatModel(respond=lambda messages: "go", delay=0.2)
    seconds = []
    for _ in range(3):
        watching = Watching()
        answer = ask(actor_critic_model(model, k=8), config={"callbacks": [watching]})
        assert answer.response_metadata["lac"]["samples"] == 8
        assert [name for name, _ in watching.runs.values()].count("candidate") == 8
        seconds.append(watching.outputs["lac.decision"]["seconds"])
    assert min(seconds) < 0.2 * 3


@variants(("reflect", "trips"), [(False, 2), (True, 3)])
def test_a_decision_waits_for_two_round_trips_and_for_three_with_a_reflection(reflect, trips):
    class Slow(Prefers):
        async def log_odds(self, trajectories):
            await asyncio.sleep(0.1)
            return await super().log_odds(trajectories)

    numbers = count()
    policy = ScriptedChatModel(respond=lambda messages: f"Action: {next(numbers)}", delay=0.1)
    world_model = ScriptedChatModel(respond=lambda messages: "It helped. This step is GOOD.", delay=0.1)
    model = actor_critic_model(policy, Slow(), k=5, reflect=reflect, world_model=world_model)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        answer = ask(model, HumanMessage("?"), AIMessage("look"), HumanMessage("a door"))
        seconds.append(time.perf_counter() - begun)
        assert answer.response_metadata["lac"]["round_trips"] == trips
    # A busy machine delays some runs, but rarely all three.
    assert trips * 0.1 <= min(seconds) < (trips + 0.9) * 0.1


def test_a_failed_sample_ends_the_others_and_is_raised():
    ended = []

    class Slow(ScriptedChatModel):
        async def _agenerate(self, messages, *args, **kwargs):
            if next(calls) == 1:
                raise ValueError("no")
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                ended.append(1)
                raise

    calls = count()
    with pytest.raises(ValueError, match="no"):
        ask(actor_critic_model(Slow(respond=str), k=4))
    assert len(ended) == 3


async def test_sync_calls_leave_nothing_on_the_background_loop():
    """Its connections would be found by the same client in another loop, which fails where they are kept alive."""
    loops = []

    class Loops(ScriptedChatModel):
        async def _agenerate(self, messages, *args, **kwargs):
            loops.append(asyncio.get_running_loop())
            return self._result(messages)

    model = actor_critic_model(Loops(respond=lambda _: "Action: go"), k=2, depth=1, reflect=True)
    state = [HumanMessage("?"), AIMessage("look"), HumanMessage("a door")]
    await asyncio.to_thread(model.invoke, state)
    assert loops == []
    await model.ainvoke(state)
    assert set(loops) == {asyncio.get_running_loop()}


@pytest.mark.thorough  # threads; quick: test_concurrent_samples_take_the_time_of_one
def test_more_sync_agents_than_threads_do_not_wait_for_each_other():
    """Under amc a sync node occupies a thread of the background loop while its model is called."""
    graph: Any = StateGraph(MessagesState)
    wrapped = actor_critic_model(ScriptedChatModel(respond=lambda _: "Action: 1"), k=3)
    graph.add_node("model", lambda state: {"messages": [wrapped.invoke(state["messages"])]})
    graph.add_node("tools", lambda state: {"messages": [HumanMessage("on")]})
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    wrapped_graph = amc(graph.compile(), "uniform", tools={"tools": "read"}, n_particles=40, seed=0)
    run = wrapped_graph.run({"messages": [HumanMessage("?")]})
    assert len(run.population.trajectories) == 40


def test_a_decision_is_not_answered_from_a_cache():
    said = count()
    set_llm_cache(InMemoryCache())
    try:
        # The actor itself is not cached here, so whatever repeats would be a cached decision.
        model = actor_critic_model(ScriptedChatModel(respond=lambda _: f"{next(said)}", cache=False), k=2)
        assert ask(model).text != ask(model).text
    finally:
        set_llm_cache(None)


@both_ways
@pytest.mark.parametrize("delays", [(0.0, 0.02, 0.04), (0.04, 0.02, 0.0)], ids=["in order", "reversed"])
def test_samples_do_not_depend_on_the_order_of_requests(sync, delays):
    begun = count()

    class Drawing(ScriptedChatModel):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            time.sleep(delays[next(begun) % 3])
            return self._result(messages)

        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            await asyncio.sleep(delays[next(begun) % 3])
            return self._result(messages)

    records = []
    model = actor_critic_model(Drawing(respond=lambda _: f"Action: {particle_rng().integers(1000)}"), k=3, seed=5)
    ask(model.model_copy(update={"sink": records.append}), sync=sync)
    streams = np.random.default_rng([5, 1]).spawn(3)
    assert [one["action"] for one in records[0]["candidates"]] == [str(rng.integers(1000)) for rng in streams]


# Tools and structured output


def test_bound_tools_reach_every_candidate():
    seen = []

    class Tooled(ChatOpenAI):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            seen.append(kwargs)
            return in_turn("go")._result(messages)

    policy = Tooled(model="small", api_key="none")
    once = actor_critic_model(policy, k=2).bind_tools([go], tool_choice="any", parallel_tool_calls=False)
    ask(once)
    ask(actor_critic_model(policy.bind_tools([go], tool_choice="any", parallel_tool_calls=False), k=2))
    assert len(seen) == 4, "a server that gives one answer of two is asked again"
    for kwargs in seen:
        assert kwargs["tools"][0]["function"]["name"] == "go"
        assert (kwargs["tool_choice"], kwargs["parallel_tool_calls"]) == ("required", False)


@both_ways
def test_a_structured_answer_is_the_choice_among_structured_answers(sync):
    class Verdict(BaseModel):
        """A verdict."""

        guilty: bool

    said = [AIMessage("", tool_calls=[{"name": "Verdict", "args": {"guilty": g}, "id": "1"}]) for g in (True, False)]
    model = actor_critic_model(in_turn(*said), Prefers(false=1.0), k=2).with_structured_output(Verdict)
    assert (model.invoke if sync else lambda x: asyncio.run(model.ainvoke(x)))("guilty?") == Verdict(guilty=False)


# The critic of a call


@both_ways
def test_a_call_names_its_critic(sync, monkeypatch):
    monkeypatch.setenv("AMC_CRITIC", "uniform")
    model = actor_critic_model(in_turn("left", "right"), Prefers(left=1.0), k=2)
    assert ask(model, sync=sync).response_metadata["lac"]["critic"] == "Prefers"
    right = {"configurable": {"critic": Prefers(right=1.0)}}
    assert ask(model, sync=sync, config=right).text == "right"
    assert ask(model, sync=sync, critic=Prefers(right=1.0)).text == "right"
    assert ask(actor_critic_model(in_turn("left")), sync=sync).response_metadata["lac"]["critic"] == "uniform"


@both_ways
def test_a_graphs_context_goes_before_its_configurable(sync):
    records = []
    graph: Any = StateGraph(MessagesState, context_schema=dict)  # type: ignore[type-var]
    graph.add_node("model", actor_critic_node(in_turn("left", "right"), k=2))
    graph.add_edge(START, "model")
    graph = graph.compile()
    given, config = {"messages": [HumanMessage("?")]}, {"configurable": {"critic": Prefers(left=1.0)}}
    context = {"critic": Prefers(right=1.0)}

    async def events():
        return [e async for e in graph.astream(given, config, context=context, stream_mode="custom")]

    records = (
        list(graph.stream(given, config, context=context, stream_mode="custom")) if sync else asyncio.run(events())
    )
    assert [(one["type"], one["action"], one["critic_from"]) for one in records] == [
        ("lac.decision", "right", "context")
    ]
    output = graph.invoke(given, config) if sync else asyncio.run(graph.ainvoke(given, config))
    assert output["messages"][-1].text == "left"


def test_a_critic_that_does_not_fit_is_refused_when_the_model_is_made(monkeypatch):
    class Reaches:
        async def reach(self, trajectory, thought, goals):
            return np.zeros(len(goals))

    with pytest.raises(ConfigurationError, match="lac does not take"):
        actor_critic_model(in_turn("go"), Reaches())
    actor_critic_model(in_turn("go"), Reaches(), use_critic=False)


def test_the_file_sets_the_effect_of_a_failing_critic():
    class Fails:
        async def log_odds(self, trajectories):
            raise CriticError("its server is gone")

    with pytest.raises(CriticError, match="gone"):
        ask(actor_critic_model(in_turn("go"), Fails(), k=1, config=Config()))
    answer = ask(actor_critic_model(in_turn("go"), Fails(), k=1, config=Config(on_critic_error="uniform")))
    assert "gone" in answer.response_metadata["lac"]["notes"][0]


# Traces, streams and usage


@both_ways
def test_candidates_are_traced_below_the_decision_and_not_streamed(sync):
    judge = JudgeCritic(in_turn("Score: 0.5"))
    watching = Watching()
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", actor_critic_node(in_turn("left", "right"), judge, k=2))
    graph.add_edge(START, "model")
    graph = graph.compile()
    given, config = {"messages": [HumanMessage("?")]}, {"callbacks": [watching]}

    async def chunks():
        return [one async for one in graph.astream(given, config, stream_mode=["messages", "values"])]

    seen = list(graph.stream(given, config, stream_mode=["messages", "values"])) if sync else asyncio.run(chunks())
    texts = [chunk[0].text for mode, chunk in seen if mode == "messages"]
    assert len(texts) == 1
    assert texts[0] in ("left", "right")
    assert [len(chunk["messages"]) for mode, chunk in seen if mode == "values"] == [1, 2]
    outer = next(run for run, (name, _) in watching.runs.items() if name == "ActorCriticModel")
    decision = next(run for run, (name, _) in watching.runs.items() if name == "lac.decision")
    assert watching.parents[decision] == outer
    below = [watching.runs[run][0] for run, parent in watching.parents.items() if parent == decision]
    assert sorted(below) == ["candidate", "candidate", "judge", "judge"]
    assert all("nostream" in watching.runs[run][1] for run, parent in watching.parents.items() if parent == decision)
    assert [one["action"] for one in watching.outputs["lac.decision"]["candidates"]] == ["left", "right"]


@both_ways
def test_a_stream_yields_the_chosen_message_alone(sync, model_of_tokens):
    wrapped = actor_critic_model(model_of_tokens, k=3, seed=1)

    async def chunks():
        return [one async for one in wrapped.astream("x")]

    streamed = list(wrapped.stream("x")) if sync else asyncio.run(chunks())
    assert [one.text for one in streamed if one.text] == [ask(wrapped, HumanMessage("x"), sync=sync).text]


def streamed(runnable, given, *, sync, **more):
    async def chunks():
        return [chunk async for chunk in runnable.astream(given, **more)]

    return list(runnable.stream(given, **more)) if sync else asyncio.run(chunks())


@both_ways
def test_a_stream_is_one_chunk_with_its_tool_calls(sync):
    call = {"name": "go", "args": {"to": "left"}, "id": "1"}
    broken = {"name": "go", "args": "to=left", "id": "2", "error": None}
    model = actor_critic_model(in_turn(AIMessage("look", tool_calls=[call], invalid_tool_calls=[broken])), k=2)
    [chunk] = streamed(model, "x", sync=sync)
    assert isinstance(chunk, AIMessageChunk)
    assert chunk.text == "look"
    assert chunk.tool_calls == [{**call, "type": "tool_call"}]
    assert [(each["name"], each["args"], each["id"]) for each in chunk.invalid_tool_calls] == [("go", "to=left", "2")]
    assert chunk.response_metadata["lac"]["critic"] == "uniform"
    assert chunk.chunk_position == "last"


@both_ways
def test_a_structured_answer_streams(sync):
    class Verdict(BaseModel):
        """A verdict."""

        guilty: bool

    said = AIMessage("", tool_calls=[{"name": "Verdict", "args": {"guilty": True}, "id": "1"}])
    model = actor_critic_model(in_turn(said), k=2)
    assert streamed(model.with_structured_output(Verdict), "x", sync=sync) == [Verdict(guilty=True)]
    schema = {"title": "Verdict", "description": "A verdict.", "type": "object",
              "properties": {"guilty": {"type": "boolean"}}}  # fmt: skip
    assert streamed(model.with_structured_output(schema), "x", sync=sync)[-1] == {"guilty": True}


@both_ways
@pytest.mark.parametrize("disabled", [False, True])
def test_a_graph_streams_the_choice_as_a_chunk_of_the_message_it_keeps(sync, disabled):
    model = actor_critic_model(in_turn("left", "right"), Prefers(right=1.0), k=2)
    model.disable_streaming = disabled

    def node(state):
        return {"messages": [model.invoke(state["messages"])]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", node)
    builder.add_edge(START, "model")
    given = {"messages": [HumanMessage("?")]}
    seen = streamed(builder.compile(), given, sync=sync, stream_mode=["messages", "values"])
    [message] = [chunk[0] for mode, chunk in seen if mode == "messages"]
    assert isinstance(message, AIMessageChunk) is not disabled
    assert message.text == "right"
    assert message.id == seen[-1][1]["messages"][-1].id


@pytest.fixture(scope="module")
def model_of_tokens():
    return EmbeddedChatModel(max_tokens=20)


async def test_events_hold_no_tokens_of_candidates(model_of_tokens):
    wrapped = actor_critic_model(model_of_tokens, k=3)
    events = [one async for one in wrapped.astream_events("x", version="v2")]
    assert {one["name"] for one in events} == {"ActorCriticModel"}


def test_requests_are_counted_once_by_role():
    usage = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}
    policy = in_turn(AIMessage("left", usage_metadata=usage), AIMessage("right", usage_metadata=usage))
    judge = JudgeCritic(in_turn(AIMessage("Score: 0.5", usage_metadata=usage)))
    imagine = in_turn(AIMessage("Observation: a wall", usage_metadata=usage))
    meter = Meter()
    model = actor_critic_model(policy, judge, k=3, depth=1, world_model=imagine)
    ask(model, config={"callbacks": [PolicyMeter(meter)]})
    assert meter.read() == {
        "policy": Usage(3, 15, 3),
        "critic": Usage(2, 10, 2),
        "world model": Usage(2, 10, 2),
    }


class Ones:
    """A critic of trajectories, for amc."""

    async def values(self, trajectories):
        return np.ones(len(trajectories))


def test_a_critic_named_for_amc_is_not_that_of_its_agents_decisions():
    records = []
    policy = actor_critic_model(in_turn("Action: 1"), Prefers(), k=1).model_copy(update={"sink": records.append})
    graph = amc(text_agent(policy), "uniform", environment=lambda state: (SumWorld(2), TASK), n_particles=2, seed=0)
    run = graph.run({"messages": [HumanMessage(TASK.instruction)]}, {"configurable": {"critic": Ones()}})
    assert run.config["critic"] == "Ones"
    assert {record["critic"] for record in records} == {"Prefers"}


# The node


class Counting(MessagesState):
    decided: Annotated[list[dict[str, Any]], operator.add]


@both_ways
def test_a_node_in_a_graph_keeps_its_decisions_in_the_named_channel(sync):
    critic = Prefers(right=1.0)
    graph: Any = StateGraph(Counting)
    graph.add_node("model", actor_critic_node(in_turn("left", "right"), critic, k=2, decisions="decided"))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "model" if len(state["messages"]) < 4 else END)
    graph = graph.compile()
    given = {"messages": [SystemMessage("Be brief."), HumanMessage("?")]}
    output = graph.invoke(given) if sync else asyncio.run(graph.ainvoke(given))
    assert [message.text for message in output["messages"]][-2:] == ["right", "right"]
    assert [one["action"] for one in output["decided"]] == ["right", "right"]
    json.dumps(output["decided"])
    assert critic.asked[0][0].task.instruction == "system: Be brief.\nhuman: ?", "the state's own, as amc reads it"


# Rollouts and reflections


def test_rollouts_are_imagined_by_the_world_model():
    critic = Prefers()
    asked = []

    def imagine(messages):
        asked.append(messages[0].text)
        return "Observation: a wall\nReflection: No way. This step is BAD."

    model = actor_critic_model(
        in_turn("left", "right"), critic, k=2, depth=2, reflect=True, world_model=ScriptedChatModel(respond=imagine)
    )
    answer = ask(model)
    assert len(asked) == 2
    assert critic.asked[0][0].steps[-1].observation == "a wall\nReflection: No way."
    assert answer.response_metadata["lac"]["round_trips"] == 3


def test_a_failed_reflection_may_be_tolerated():
    def fails(messages):
        return OSError("its server is gone")

    settings = {"k": 1, "reflect": True, "world_model": ScriptedChatModel(respond=fails)}
    state = [HumanMessage("?"), AIMessage("Action: look"), HumanMessage("a door")]
    with pytest.raises(CriticError, match="its server is gone"):
        actor_critic_model(in_turn("left"), Prefers(), **settings).invoke(state)
    answer = actor_critic_model(in_turn("left"), Prefers(), on_critic_error="uniform", **settings).invoke(state)
    assert "left" in answer.text
    (note,) = answer.response_metadata["lac"]["notes"]
    assert note.startswith("the newest step has no reflection:")
    assert "its server is gone" in note


@both_ways
def test_reflections_stay_in_the_history_that_actor_and_critic_read(sync):
    critic, shown = Prefers(), []

    def respond(messages):
        shown.append([message.text for message in messages])
        return f"Action: step{len(messages)}"

    def reflect(messages):
        return f"Reflection: thought {len(shown)}. This step is UNKNOWN."

    model = actor_critic_model(ScriptedChatModel(respond=respond), critic, k=1, reflect=True,
                               world_model=ScriptedChatModel(respond=reflect))  # fmt: skip
    state = [HumanMessage("task")]
    for observation in ("one", "two", None):
        answer = ask(model, *state, sync=sync)
        state += [answer] if observation is None else [answer, HumanMessage(observation)]
    assert [message.text for message in state if isinstance(message, HumanMessage)] == ["task", "one", "two"]
    assert shown[-1][2::2] == [
        "one\nReflection: thought 1. This step is UNKNOWN.",
        "two\nReflection: thought 2. This step is UNKNOWN.",
    ]
    assert [one.observation for one in critic.asked[-1][0].steps] == [*shown[-1][2::2], ""]
    assert answer.response_metadata["lac"]["reflection"] == "thought 2. This step is UNKNOWN."
    assert answer.response_metadata["lac"]["round_trips"] == 3


# The embedded model


@pytest.mark.thorough
@both_ways
def test_the_embedded_model_decides_the_same_with_the_same_seed(sync, model_of_tokens):
    task = generate_task(7, "examples", optimal_steps=(6, 9))
    model = actor_critic_model(model_of_tokens, "embedded:crafting", k=4, greedy=True, sample=True, seed=3)
    first, again = (ask(model, HumanMessage(task.instruction), sync=sync) for _ in range(2))
    assert first.text == again.text
    assert first.response_metadata["lac"]["usage"]["policy"]["calls"] == 2
    alone = actor_critic_model(EmbeddedChatModel(temperature=1.5, max_tokens=40), k=1)
    others = {ask(alone.model_copy(update={"seed": seed}), HumanMessage(task.instruction)).text for seed in range(12)}
    assert len(others) > 1


async def test_the_embedded_agent_plays_a_whole_episode():
    task = generate_task(7, "examples", optimal_steps=(6, 9))
    policy = actor_critic_model(EmbeddedChatModel(), "embedded:crafting", k=5, greedy=True, seed=0)
    graph = amc(
        text_agent(policy), environment=lambda state: (CraftingWorld(), task), n_particles=1, horizon=20, seed=0
    )
    run = await graph.arun({"messages": [HumanMessage(task.instruction)]})
    assert run.best.return_ in (0.0, 1.0)
    assert run.usage["policy"].calls == 2 * len(run.best.steps)
    assert run.usage["critic"].calls >= len(run.best.steps)


def test_a_prior_that_scores_texts_refuses_tool_calls():
    class Scorer:
        async def log_likelihoods(self, messages, texts, temperature):
            return np.zeros(len(texts))

    model = actor_critic_model(ChatOpenAI(model="small", api_key="none"), prior="thoughts", scorer=Scorer())
    with pytest.raises(ConfigurationError, match="calls tools"):
        ask(model.bind_tools([go]))
    answer = ask(actor_critic_model(in_turn("left"), prior="thoughts", scorer=Scorer(), k=2))
    assert answer.response_metadata["lac"]["prior"] == "thoughts"


class TwoButtons:
    """Scores a turn by its action alone."""

    def __init__(self):
        self.asked = []

    async def log_likelihoods(self, messages, texts, temperature):
        self.asked.append([text.given + text.scored for text in texts])
        return np.log([0.8 if text.scored == " left" else 0.2 for text in texts])


@both_ways
def test_all_actions_that_the_world_lists_are_candidates(sync):
    scorer, asked = TwoButtons(), []

    def respond(messages):
        asked.append(1)
        return "Thought: on\nAction: left"

    policy = ScriptedChatModel(respond=respond)
    options = {"scorer": scorer, "actions": lambda messages: ["left", *messages[-1].text.split()], "k": 3}
    thinking = actor_critic_model(policy, Prefers(right=2.0), prior="thoughts", **options)
    answer = ask(thinking, HumanMessage("right"), sync=sync)
    assert (answer.text, len(asked)) == ("Thought: on\nAction: right", 3)  # no sample did it
    assert answer.id is not None
    told = answer.response_metadata["lac"]
    assert (told["prior"], told["candidates"], told["samples"], told["round_trips"]) == ("list", 2, 3, 2)
    assert scorer.asked == [["Thought: on\nAction: left", "Thought: on\nAction: right"]]
    plain = actor_critic_model(policy, Prefers(right=1.0), prior="likelihood", **options)
    assert ask(plain, HumanMessage("right"), sync=sync).text == "Action: left"  # log 4 > 1
    assert len(asked) == 3


def test_a_list_of_actions_needs_a_scorer():
    for options in ({"prior": "thoughts"}, {"scorer": TwoButtons()}):
        with pytest.raises(ConfigurationError, match="needs scorer="):
            actor_critic_model(in_turn("left"), actions=["left"], **options)
