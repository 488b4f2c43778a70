"""The spans of runs and particles."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from amc_agents import AmcSettings
from amc_agents.errors import CriticError, QuorumLost
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import effect
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.durable.scenario import CONFIG, Scenario, facts
from tests.population.worlds import ReturnSoFar, SumWorld, digits, number_agent, say, start, sum_world, tool_caller


@pytest.fixture(params=["sync", "async"])
def play(request):
    def run(graph, *arguments):
        return graph.run(*arguments) if request.param == "sync" else asyncio.run(graph.arun(*arguments))

    return run


def population(agent=None, critic=None, **settings):
    options = {"environment": lambda state: sum_world(state, 5), "n_particles": 5, "resample": AtSteps(1, 2),
               "beta": 1.0, "seed": 1}  # fmt: skip
    return amc(agent or number_agent(), critic or ReturnSoFar(3.0), **arguments(**{**options, **settings}))


def assert_complete(seen):
    """Every span has ended, and its parent was exported too."""
    ids = {span.context.span_id for span in seen.spans}
    assert all(span.end_time >= span.start_time for span in seen.spans)
    assert all(span.parent is None or span.parent.span_id in ids for span in seen.spans)


def test_a_run_is_one_tree(seen, play):
    run = play(population(), start())
    [root] = seen.runs
    assert root.parent is None
    assert root.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert_complete(seen)
    assert {span.name for span in seen.below(root)} == {
        "amc.weigh", "amc.resample", *(f"invoke_agent particle {slot}" for slot in range(5))
    }  # fmt: skip
    below = [seen.below(agent) for agent in seen.agents]
    assert {span.name for spans in below for span in spans} == {"chat", "execute_tool environment"}
    assert sum(len(spans) for spans in below) == 2 * run.usage["policy"].calls
    for agent in seen.agents:
        for span in seen.below(agent):
            assert agent.start_time <= span.start_time <= span.end_time <= agent.end_time
    assert len({span.context.trace_id for span in seen.spans}) == 1
    assert {span.attributes["openinference.span.kind"] for span in seen.spans} == {
        "CHAIN", "AGENT", "LLM", "TOOL", "EVALUATOR"
    }  # fmt: skip


def test_links_and_nodes_follow_the_ancestry(seen, play):
    run = play(population(), start())
    ancestors = {point.step: point.ancestors.tolist() for point in run.history[:2]}
    expected = Counter(
        (slot, source, step)
        for step, sources in ancestors.items()
        for slot, source in enumerate(sources)
        if sources.count(source) > 1  # A forked particle starts again too.
    )
    continued = [agent for agent in seen.agents if "amc.ancestor" in agent.attributes]
    begun = Counter(tuple(agent.attributes[f"amc.{name}"] for name in ("particle", "ancestor", "step"))
                    for agent in continued)  # fmt: skip
    assert begun == expected
    for agent in continued:
        [ancestor] = seen.linked(agent)
        assert ancestor.attributes["amc.particle"] == agent.attributes["amc.ancestor"]
        assert ancestor.attributes["amc.steps"] == agent.attributes["amc.step"]
        assert ancestor.attributes["amc.outcome"] == "forked"
        assert ancestor.end_time <= agent.start_time
        assert ancestor.attributes["graph.node.id"] == agent.attributes["graph.node.parent_id"]
    first = [agent for agent in seen.agents if "amc.ancestor" not in agent.attributes]
    assert [agent.links for agent in first] == [()] * 5
    assert {agent.attributes["graph.node.parent_id"] for agent in first} == {seen.runs[0].attributes["graph.node.id"]}
    nodes = [agent.attributes["graph.node.id"] for agent in seen.agents]
    assert len(set(nodes)) == len(nodes)


def test_the_run_tells_its_result_and_links_to_the_winner(seen, play):
    run = play(population(), start())
    [root] = seen.runs
    told = root.attributes
    assert told["amc.best_index"] == run.best_index
    assert told["amc.log_evidence"] == pytest.approx(run.log_evidence)
    assert told["amc.n_resamplings"] == sum(point.ancestors is not None for point in run.history)
    assert told["amc.usage.policy.calls"] == run.usage["policy"].calls
    assert told["amc.seed"] == 1
    [winner] = [agent for agent in seen.agents if agent.attributes.get("amc.winner")]
    assert winner.attributes["amc.particle"] == run.best_index
    assert winner.attributes["amc.value"] == run.population.values[run.best_index]
    [link] = root.links
    assert link.context.span_id == winner.context.span_id


def test_values_are_evaluation_events_of_the_particles_and_on_the_weighings_span(seen, play):
    run = play(population(), start())
    agents = {agent.context.span_id: agent for agent in seen.agents}
    told = Counter(
        (event.attributes["amc.step"], agents[event.span_id].attributes["amc.particle"],
         event.attributes["gen_ai.evaluation.score.value"])
        for event in seen.events
    )  # fmt: skip
    assert told == Counter(
        (point.step, slot, value) for point in run.history for slot, value in enumerate(point.values)
    )
    assert {event.event_name for event in seen.events} == {"gen_ai.evaluation.result"}
    assert {event.attributes["gen_ai.evaluation.name"] for event in seen.events} == {"ReturnSoFar"}
    for span, point in zip(seen.named("amc.weigh"), run.history, strict=True):
        assert span.attributes["amc.values"] == tuple(point.values)
        assert span.attributes["amc.ess"] == pytest.approx(point.ess)
    for span, point in zip(seen.named("amc.resample"), run.history, strict=False):
        assert span.attributes["amc.ancestors"] == tuple(point.ancestors)


def secretive():
    """An agent whose every text has the canary, in a world that repeats it."""

    class Repeats(SumWorld):
        async def step(self, action):
            answer = await super().step(action.split()[-1])
            return type(answer).transition(f"canary {answer.observation}", answer.reward)

    def respond(messages):
        if len(messages) > 4:
            raise ConnectionError("canary of the provider")
        return f"Thought: canary\nAction: canary {len(messages)}"

    graph = population(number_agent(respond), environment=lambda state: (Repeats(), sum_world(state)[1]), quorum=1)
    return graph, {"messages": [HumanMessage("canary")]}


def test_no_text_is_recorded(seen, play):
    graph, given = secretive()
    with pytest.raises(QuorumLost, match="canary"):
        play(graph, given)
    assert seen.named("chat")
    assert "canary" not in seen.text


def test_text_is_recorded_where_it_is_asked_for(seen_with_content, play):
    graph, given = secretive()
    with pytest.raises(QuorumLost):
        play(graph, given)
    first = seen_with_content.named("chat")[0].attributes
    assert '"content": "canary"' in first["gen_ai.input.messages"]
    assert "Action: canary" in first["gen_ai.output.messages"]
    step = seen_with_content.named("execute_tool")[0].attributes
    assert (step["input.value"], step["output.value"]) == ("canary 1", "canary taken 1")
    assert "canary of the provider" in {span.status.description for span in seen_with_content.named("chat")}


def test_failures_set_the_status(seen, play):
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("the provider is down") if answer.endswith("0") else answer

    graph = population(number_agent(respond), environment=sum_world, n_particles=6, resample=Never(), quorum=1, seed=0)
    run = play(graph, start())
    failed = {agent.attributes["amc.particle"] for agent in seen.agents if agent.status.status_code is StatusCode.ERROR}
    assert failed == {slot for slot, failed in enumerate(run.population.failed) if failed}
    assert 0 < len(failed) < 6
    assert {agent.attributes["amc.outcome"] for agent in seen.agents} == {"failed", "finished"}
    wrong = [span for span in seen.named("chat") if span.status.status_code is StatusCode.ERROR]
    assert [span.attributes["error.type"] for span in wrong] == ["RuntimeError"] * len(failed)
    assert seen.runs[0].status.status_code is StatusCode.UNSET


def test_a_failed_run_is_an_error_with_all_spans_ended(seen, play):
    class Fails:
        async def values(self, trajectories):
            raise ConnectionError("gone")

    with pytest.raises(CriticError):
        play(population(critic=Fails(), rewards=None), start())
    assert_complete(seen)
    [root] = seen.runs
    assert root.attributes["error.type"] == "CriticError"
    [weighing] = seen.named("amc.weigh")
    assert weighing.status.status_code is StatusCode.ERROR
    assert {agent.attributes["amc.outcome"] for agent in seen.agents} == {"unfinished"}
    assert len(seen.agents) == 5


async def test_a_request_that_hangs_leaves_no_span_open(seen):
    hangs = asyncio.Event()

    class Hangs(ScriptedChatModel):
        async def _agenerate(self, *args, **kwargs):
            await hangs.wait()

    graph = population(text_agent(Hangs(respond=digits)), step_timeout=0.05, quorum=1)
    with pytest.raises(QuorumLost):
        await graph.arun(start())
    assert_complete(seen)
    assert [agent.attributes["error.type"] for agent in seen.agents] == ["TimeLimitExceeded"] * 5
    assert [span.attributes["error.type"] for span in seen.named("chat")] == ["Unfinished"] * 5


async def test_a_cancelled_run_leaves_no_span_open(seen):
    waiting, never = asyncio.Event(), asyncio.Event()

    class Hangs(ScriptedChatModel):
        async def _agenerate(self, *args, **kwargs):
            waiting.set()
            await never.wait()

    task = asyncio.create_task(population(text_agent(Hangs(respond=digits)), n_particles=1).arun(start()))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_complete(seen)
    assert (len(seen.agents), len(seen.named("chat"))) == (1, 1)
    assert seen.runs[0].attributes["error.type"] == "CancelledError"


def test_a_stream_that_is_not_read_to_its_end_is_no_error(seen):
    stream = population().stream(start(), stream_mode="custom")
    next(stream)
    stream.close()
    assert_complete(seen)
    assert seen.runs[0].status.status_code is StatusCode.UNSET
    assert {agent.status.status_code for agent in seen.agents} == {StatusCode.UNSET}


def test_each_attempt_of_a_repeated_request_has_a_span(seen, play):
    def respond(messages):
        attempts.append(None)
        return ConnectionError("busy") if len(attempts) % 2 else digits(messages)

    attempts: list[None] = []
    agent = text_agent(ScriptedChatModel(respond=respond).with_retry(wait_exponential_jitter=False))
    play(population(agent, n_particles=1, resample=Never()), start())
    codes = [span.status.status_code for span in seen.named("chat")]
    assert codes == [StatusCode.ERROR, StatusCode.UNSET] * 5
    assert_complete(seen)


async def test_runs_side_by_side_do_not_mix(seen):
    graph = population(n_particles=3)
    threads = ["a", "b", "c"]
    await asyncio.gather(*(graph.arun(start(), {"configurable": {"thread_id": name}}) for name in threads))
    assert sorted(run.attributes["gen_ai.conversation.id"] for run in seen.runs) == threads
    by_trace = {run.context.trace_id: run.attributes["amc.run"] for run in seen.runs}
    assert len(set(by_trace.values())) == 3
    assert all(span.attributes["amc.run"] == by_trace[span.context.trace_id] for span in seen.spans)
    assert_complete(seen)


def test_a_run_lies_below_the_callers_span(seen, play):
    with seen.provider.get_tracer("app").start_as_current_span("request") as request:
        play(population(), start())
        assert trace.get_current_span() is request
    [root] = seen.runs
    assert root.parent.span_id == request.get_span_context().span_id


def test_what_a_tool_calls_lies_below_the_tool(seen, play):
    helper = ScriptedChatModel(respond=lambda messages: "a hint")

    @tool
    @effect("read")
    async def think(number: int) -> str:
        """Ask another model."""
        return (await helper.ainvoke("hint?")).text

    def respond(messages):
        if any(isinstance(message, ToolMessage) for message in messages):
            return "done"
        return AIMessage("", tool_calls=[{"name": "think", "args": {"number": 1}, "id": "call-1"}])

    agent = create_agent(ScriptedChatModel(respond=respond), [think])
    graph = amc(agent, ReturnSoFar(), n_particles=2, resample=Never(), settings=AmcSettings(rewards=None), seed=0)
    play(graph, start())
    tools = seen.named("execute_tool think")
    assert len(tools) == 2
    for each in tools:
        assert each.attributes["gen_ai.tool.call.id"] == "call-1"
        assert [span.name for span in seen.below(each)] == ["chat"]
    for agent_span in seen.agents:
        assert [span.name for span in seen.below(agent_span)] == ["chat", "execute_tool think", "chat"]


def test_a_tools_step_of_the_world_lies_below_the_tool(seen, play):
    graph = amc(create_agent(tool_caller(2), [say]), environment=sum_world, n_particles=2, resample=Never(), seed=0)
    play(graph, start())
    for each in seen.named("execute_tool say"):
        [step] = seen.below(each)
        assert step.name == "execute_tool environment"
        assert step.attributes["amc.particle"] == each.attributes["amc.particle"]
        assert math.isfinite(step.attributes["amc.reward"])


def test_a_run_inside_a_run_lies_below_its_particle(seen, play):
    inner = population(n_particles=2, resample=AtSteps(1), environment=lambda state: sum_world(state, 2))

    @tool
    @effect("read")
    async def search() -> str:
        """Search."""
        return (await inner.ainvoke(start()))["messages"][-1].text

    def respond(messages):
        if any(isinstance(message, ToolMessage) for message in messages):
            return "done"
        return AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call-1"}])

    outer = amc(create_agent(ScriptedChatModel(respond=respond), [search]), ReturnSoFar(), n_particles=2,
                resample=Never(), settings=AmcSettings(rewards=None), seed=0)  # fmt: skip
    play(outer, start())
    root = next(run for run in seen.runs if run.parent is None)
    tools = seen.named("execute_tool search")
    assert [len(seen.below(each, "invoke_workflow")) for each in tools] == [1, 1]
    assert len({run.attributes["amc.run"] for run in seen.runs}) == 3
    assert len(seen.below(root, "invoke_agent")) == 2
    assert_complete(seen)


@pytest.mark.thorough
def test_a_resumed_run_continues_the_spans_of_the_broken_one(seen, play):
    broken = Scenario(InMemorySaver(), resample=EveryStep())
    broken.fails_at_critic_call = 3
    with pytest.raises(CriticError, match="the machine dies"):
        play(broken.graph, start(), CONFIG)
    plain = play(Scenario(resample=EveryStep()).graph, start())
    assert facts(play(broken.graph, None, CONFIG)) == facts(plain)
    failed, _, resumed = seen.runs
    assert failed.attributes["amc.run"] == resumed.attributes["amc.run"]
    relations = {link.attributes["amc.link"]: link.context.span_id for link in resumed.links}
    assert relations["resumed"] == failed.context.span_id
    began = [agent for agent in seen.below(resumed, "invoke_agent") if agent.attributes["amc.step"] == 2]
    assert len(began) == 5
    for agent in began:
        [ancestor] = seen.linked(agent)
        assert ancestor.context.trace_id == failed.context.trace_id
        assert ancestor.attributes["amc.steps"] == 2
    assert_complete(seen)


def test_traces_change_no_result(seen, play):
    traced = facts(play(population(), start()))
    seen.__exit__()
    assert facts(play(population(), start())) == traced
