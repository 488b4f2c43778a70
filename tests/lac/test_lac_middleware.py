"""LAC's middleware inside real agents of `create_agent`."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from itertools import count, cycle

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelFallbackMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from amc_agents import ActorCritic, AtSteps, amc
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.deciding import MOST_KEPT, latest
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.usage import Usage, record
from tests.lac.lac_agents import Prefers, both_ways, go, walker
from tests.population.worlds import TASK, SumWorld, say

CANDIDATES = ("left", "right")


def an_agent(critic=None, *, model=None, before=(), after=(), agent=None, **settings):
    middleware = [*before, ActorCritic(critic, **{"k": 2, **settings}), *after]
    return create_agent(model or walker(*CANDIDATES), [go], middleware=middleware, **(agent or {}))


GIVEN = {"messages": [HumanMessage("Go right.")]}


def invoke(agent, *, sync, given=GIVEN, **more):
    return agent.invoke(given, **more) if sync else asyncio.run(agent.ainvoke(given, **more))


def stream(agent, mode, *, sync, **more):
    async def chunks():
        return [one async for one in agent.astream(GIVEN, stream_mode=mode, **more)]

    return list(agent.stream(GIVEN, stream_mode=mode, **more)) if sync else asyncio.run(chunks())


@both_ways
def test_each_answer_is_chosen(sync):
    critic = Prefers(right=1.0)
    output = invoke(an_agent(critic, agent={"system_prompt": "Walk."}), sync=sync)
    assert [message.text for message in output["messages"]] == [
        "Go right.",
        "",
        "you went right",
        "done: you went right",
    ]
    assert set(output) == {"messages"}
    first, last = critic.asked
    assert first[0].task.instruction == "Go right.", "the system prompt is not in the state that amc reads"
    assert [one.steps[0].action for one in first] == [
        f'{{"args": {{"to": "{way}"}}, "name": "go"}}' for way in CANDIDATES
    ]
    assert last[0].steps[0].observation == "you went right"
    assert invoke(an_agent(Prefers(left=1.0)), sync=sync)["messages"][-1].text == "done: you went left"


@both_ways
def test_the_user_sees_only_the_chosen_messages(sync):
    agent = an_agent(Prefers(right=1.0))
    messages = [message for message, _ in stream(agent, "messages", sync=sync)]
    assert [message.text for message in messages] == ["", "you went right", "done: you went right"]
    assert "left" not in json.dumps([message.model_dump() for message in messages], default=str)
    values = stream(agent, "values", sync=sync)
    assert "left" not in json.dumps([one["messages"] for one in values], default=str)
    bare = stream(an_agent(Prefers(right=1.0), keep_decisions=False), ["values", "updates"], sync=sync)
    assert "left" not in json.dumps(bare, default=str)


@both_ways
def test_tokens_of_a_streaming_model_do_not_leak(sync):
    model = EmbeddedChatModel(streaming=True, max_tokens=12)
    agent = create_agent(model, middleware=[ActorCritic(k=4, greedy=True)])
    seen = stream(agent, ["messages", "values"], sync=sync)
    texts = [chunk[0].text for mode, chunk in seen if mode == "messages"]
    (final,) = [chunk for mode, chunk in seen if mode == "values"][-1:]
    assert "".join(texts) == final["messages"][-1].text


@both_ways
def test_decisions_are_private_state_custom_events_and_nothing_of_the_output(sync):
    agent = an_agent(Prefers(right=1.0), agent={"checkpointer": InMemorySaver()})
    config = {"configurable": {"thread_id": "1"}}
    events = stream(agent, "custom", sync=sync, config=config)
    assert [one["type"] for one in events] == ["lac.decision"] * 2
    first = events[0]
    assert [(one["n"], one["q"]) for one in first["candidates"]] == [(1, 0.0), (1, 1.0)]
    assert first["candidates"][1]["probability"] == pytest.approx(1 / (1 + np.exp(-1)))
    assert (first["chosen"], first["prior"], first["alpha"], first["critic"]) == (1, "frequency", 1.0, "Prefers")
    assert first["usage"]["policy"]["calls"] == 2
    state = agent.get_state(config).values["lac_decisions"]
    assert state == events
    assert set(invoke(agent, sync=sync, config=config)) == {"messages"}
    assert len(agent.get_state(config).values["lac_decisions"]) == 3, "the second turn needs no tool"


def test_the_state_keeps_the_newest_decisions():
    kept = None
    for number in range(MOST_KEPT + 3):
        kept = latest(kept, [{"number": number}])
    assert [kept[0]["number"], len(kept)] == [3, MOST_KEPT]


# Structured output


class Way(BaseModel):
    """Where to go."""

    to: str


@both_ways
def test_structured_output_by_a_tool(sync):
    numbers = count()
    ways = cycle(CANDIDATES)

    def respond(messages):
        return AIMessage("", tool_calls=[{"name": "Way", "args": {"to": next(ways)}, "id": f"call-{next(numbers)}"}])

    agent = an_agent(
        Prefers(right=1.0), model=ScriptedChatModel(respond=respond), agent={"response_format": ToolStrategy(Way)}
    )
    output = invoke(agent, sync=sync)
    assert output["structured_response"] == Way(to="right")


def answering(to, _):
    return json.dumps({"to": to})


@both_ways
def test_structured_output_by_the_provider(sync):
    seen = []

    class Provider(ChatOpenAI):
        async def _agenerate(self, *args, **kwargs):
            return self._generate(*args, **kwargs)

        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            seen.append(kwargs)
            answers = [ScriptedChatModel(respond=partial(answering, w)) for w in CANDIDATES]
            results = [one._result(messages) for one in answers]
            return results[0].model_copy(update={"generations": [one.generations[0] for one in results]})

    model = Provider(model="small", api_key="none")
    agent = an_agent(Prefers(right=1.0), model=model, agent={"response_format": ProviderStrategy(Way)})
    assert invoke(agent, sync=sync)["structured_response"] == Way(to="right")
    assert [one["n"] for one in seen] == [2]
    assert seen[0]["response_format"]["json_schema"]["name"] == "Way"
    assert seen[0]["tools"][0]["function"]["name"] == "go"


def test_a_models_abilities_are_those_of_the_actor():
    """LangChain chooses a strategy by the model's profile and name."""
    seen = []

    class Sees(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            seen.append(request.model)
            return handler(request)

    an_agent(model=ChatOpenAI(model="gpt-4o", api_key="none"), after=[Sees(), Answers()]).invoke(GIVEN)
    assert (seen[0].model_name, seen[0].profile) == ("gpt-4o", ChatOpenAI(model="gpt-4o", api_key="none").profile)


class Answers(AgentMiddleware):
    """Answers without asking the model."""

    def wrap_model_call(self, request, handler):
        return AIMessage("from elsewhere")


# Other middleware


@both_ways
def test_other_middleware_is_called_once_per_decision_and_its_request_holds_for_all(sync):
    calls = []
    seen = []

    class Prompts(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            calls.append(1)
            return handler(request.override(messages=[*request.messages, HumanMessage("Quickly!")]))

        async def awrap_model_call(self, request, handler):
            calls.append(1)
            return await handler(request.override(messages=[*request.messages, HumanMessage("Quickly!")]))

    def respond(messages):
        seen.append(messages[-1].text)
        return "done"

    for place in ("before", "after"):
        calls.clear()
        seen.clear()
        agent = an_agent(model=ScriptedChatModel(respond=respond), **{place: [Prompts()]})
        invoke(agent, sync=sync)
        assert (len(calls), seen) == (1, ["Quickly!", "Quickly!"])


def test_a_middleware_that_removes_the_decision_is_logged(caplog):
    agent = an_agent(Prefers(right=1.0), after=[Answers()])
    assert agent.invoke(GIVEN)["messages"][-1].text == "from elsewhere"
    assert "decided nothing" in caplog.text


def test_a_fallback_outside_gets_decisions_from_both_models():
    def fails(messages):
        return ValueError("down")

    critic = Prefers(right=1.0)
    agent = an_agent(
        critic, model=ScriptedChatModel(respond=fails), before=[ModelFallbackMiddleware(walker(*CANDIDATES))]
    )
    assert agent.invoke(GIVEN)["messages"][-1].text == "done: you went right"


def test_invalid_settings_are_refused_by_the_constructor():
    with pytest.raises(ConfigurationError, match="k must be a number"):
        ActorCritic(k=0)
    with pytest.raises(ConfigurationError, match="no setting `temperature`"):
        an_agent(greedy=True).invoke(GIVEN)


@both_ways
def test_a_call_names_its_critic(sync):
    agent = an_agent(Prefers(left=1.0), agent={"context_schema": dict})
    right = Prefers(right=1.0)
    for more in ({"context": {"critic": right}}, {"config": {"configurable": {"critic": right}}}):
        assert invoke(agent, sync=sync, **more)["messages"][-1].text == "done: you went right"
    assert invoke(agent, sync=sync)["messages"][-1].text == "done: you went left"


# Under amc


class Counted:
    """A critic that prefers large numbers and counts its calls."""

    decisions = 0

    async def log_odds(self, trajectories):
        Counted.decisions += 1
        record("critic", Usage(calls=1, input_tokens=len(trajectories)))
        return np.array([float(json.loads(one.steps[-1].action).get("args", {}).get("number", 0))
                         if one.steps[-1].action.startswith("{") else 0.0 for one in trajectories])  # fmt: skip


@both_ways
def test_an_agent_with_it_runs_as_particles(sync):
    from amc_agents.models.seeding import particle_rng

    asked = []

    def respond(messages):
        usage = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}
        asked.append(1)
        if sum(isinstance(message, ToolMessage) for message in messages) == 2:
            return AIMessage("finished", usage_metadata=usage)
        call = {"name": "say", "args": {"number": int(particle_rng().integers(10))}, "id": f"call-{len(asked)}"}
        return AIMessage("", tool_calls=[call], usage_metadata=usage)

    Counted.decisions = 0
    agent = create_agent(ScriptedChatModel(respond=respond), [say], middleware=[ActorCritic(Counted(), k=3, alpha=9.0)])
    graph = amc(agent, environment=lambda state: (SumWorld(2), TASK), n_particles=4, resample=AtSteps(1), seed=0)
    given = {"messages": [HumanMessage(TASK.instruction)]}
    run = graph.run(given) if sync else asyncio.run(graph.arun(given))
    assert run.usage["policy"] == Usage(len(asked), 5 * len(asked), len(asked))
    assert run.usage["critic"] == Usage(Counted.decisions, run.usage["critic"].input_tokens)
    assert Counted.decisions * 3 == len(asked)
    assert len({one.steps[0].action for one in run.population.trajectories}) > 1, "siblings differ"
    assert run.best.return_ > 9, "the critic likes large numbers"
