"""LLM-PSRL's middleware inside real agents of `create_agent`."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, interrupt

from amc_agents import PosteriorSampling
from amc_agents.errors import ConfigurationError, RoleError, UpdateError
from amc_agents.psrl.episodes import OPEN
from amc_agents.psrl.options import RoleModel
from amc_agents.psrl.posterior.memory import InMemoryPosterior
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.usage import Meter, metering
from tests.psrl.exploring_agents import (
    ARMS,
    GIVEN,
    NAMESPACE,
    PRIOR,
    an_agent,
    counts,
    exact_roles,
    machine,
    player,
)

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def invoke(agent, *, sync, **more):
    return agent.invoke(GIVEN, **more) if sync else asyncio.run(agent.ainvoke(GIVEN, **more))


def stream(agent, mode, *, sync, **more):
    async def chunks():
        return [chunk async for chunk in agent.astream(GIVEN, stream_mode=mode, **more)]

    return list(agent.stream(GIVEN, stream_mode=mode, **more)) if sync else asyncio.run(chunks())


def texts(store):
    return [version.text for version in asyncio.run(StorePosterior(store, NAMESPACE).history())]


def open_episodes(store):
    return store.search((*NAMESPACE, OPEN))


@both_ways
def test_each_run_acts_on_a_hypothesis_and_learns(sync):
    store, prompts = InMemoryStore(), []
    pull, pulled = machine()
    agent = an_agent(store, pull=pull, model=player(prompts=prompts), agent={"system_prompt": "Be bold."})
    for _ in range(3):
        output = invoke(agent, sync=sync)
        assert set(output) == {"messages"}
        assert [message.type for message in output["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert all(prompt.startswith("Be bold.\n\n") for prompt in prompts)
    drawn = [re.search(r"<hypothesis>.*</hypothesis>", prompt, re.DOTALL)[0] for prompt in prompts]
    assert [len(set(drawn[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]
    assert len(set(drawn)) == 3
    first, *_, last = texts(store)
    assert first == str(PRIOR)
    assert len(texts(store)) == 4
    assert counts(last).tolist() == [3, 3]
    for arm in ARMS:
        successes, failures = re.search(rf"arm {arm}: Beta\((\d+), (\d+)\)", last).groups()
        assert int(successes) + int(failures) - 2 == pulled.count(arm)
    assert not open_episodes(store)


@both_ways
def test_the_user_sees_the_agents_messages_alone(sync):
    seen = stream(an_agent(InMemoryStore()), ["messages", "custom"], sync=sync)
    streamed = [chunk[0].text for mode, chunk in seen if mode == "messages"]
    assert streamed[-1] == "Enough."
    assert not any("Beta" in text or "mean of arm" in text for text in streamed)
    hypothesis, posterior = [chunk for mode, chunk in seen if mode == "custom"]
    assert hypothesis["type"] == "psrl.hypothesis"
    assert "mean of arm" in hypothesis["hypothesis"]
    assert hypothesis["version"] == 1
    assert hypothesis["usage"]["posterior sampler"]["calls"] == 1
    assert posterior["type"] == "psrl.posterior"
    assert (posterior["version"], posterior["n_steps"], posterior["failed"]) == (2, 2, [])
    assert list(posterior["usage"]) == ["posterior updater"]


@both_ways
def test_usage_reaches_the_callers_meter(sync):
    meter = Meter()
    with metering(meter):
        invoke(an_agent(InMemoryStore()), sync=sync)
    assert {role: usage.calls for role, usage in meter.read().items()} == {
        "posterior sampler": 1,
        "posterior updater": 1,
    }


@both_ways
def test_step_by_step(sync):
    store = InMemoryStore()
    events = stream(an_agent(store, update="step", model=player(3)), "custom", sync=sync)
    assert [event["type"] for event in events] == ["psrl.hypothesis"] + ["psrl.posterior"] * 3
    assert [counts(text).tolist() for text in texts(store)] == [[0, 0], [1, 0], [1, 1], [2, 1]]


class Broken(Exception):
    """An error of the tool."""


def breaks_at(number):
    def harm(now):
        if now == number:
            raise Broken

    return harm


@both_ways
@pytest.mark.parametrize("thread", [None, "same", "other"])
def test_an_interrupted_run_loses_nothing(sync, thread):
    store = InMemoryStore()
    kept = {} if thread is None else {"checkpointer": InMemorySaver()}
    config = {} if thread is None else {"config": {"configurable": {"thread_id": "1"}}}
    pull, pulled = machine(breaks_at(2))
    agent = an_agent(store, pull=pull, model=player(1), agent=kept)
    dying = an_agent(store, pull=pull, model=player(2), agent=kept)
    with pytest.raises(Broken):
        invoke(dying, sync=sync, **config)
    assert len(texts(store)) == 1
    if thread != "same":
        agent = dying if thread is None else agent
    if thread == "other":
        # Another thread cannot know that the run died, so it waits.
        config = {"config": {"configurable": {"thread_id": "2"}}}
        pull, _ = machine()
        invoke(an_agent(store, pull=pull, model=player(1), agent=kept), sync=sync, **config)
        assert [counts(text).sum() for text in texts(store)] == [0, 1]
        invoke(an_agent(store, pull=pull, model=player(1), agent=kept, abandoned_after=0.0), sync=sync, **config)
        assert [counts(text).sum() for text in texts(store)] == [0, 1, 2, 3]
        return
    pulled.append("none")  # The machine works again.
    invoke(agent, sync=sync, **config)
    assert [counts(text).sum() for text in texts(store)][:2] == [0, 1], "the interrupted episode comes first"
    assert counts(texts(store)[-1]).sum() in (2, 3)


@both_ways
def test_a_run_that_pauses_for_a_human_is_not_abandoned(sync):
    store, asks = InMemoryStore(), True
    pull, _ = machine(lambda number: asks and number == 2 and interrupt("Go on?"))
    agent = an_agent(store, pull=pull, agent={"checkpointer": InMemorySaver()})
    invoke(agent, sync=sync, config={"configurable": {"thread_id": "1"}})
    asks = False
    invoke(agent, sync=sync, config={"configurable": {"thread_id": "2"}})
    assert [counts(text).sum() for text in texts(store)] == [0, 2], "the pull of the paused run is not learnt yet"
    resumed = agent.invoke(Command(resume="Yes."), {"configurable": {"thread_id": "1"}})
    assert resumed["messages"][-1].text == "Enough."
    assert [counts(text).sum() for text in texts(store)] == [0, 2, 4]


@pytest.mark.thorough
def test_a_killed_process(tmp_path):
    path = str(tmp_path / "memory.db")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.psrl.exploring_agents", path], cwd=root, timeout=300)
    assert done.returncode == 9
    with SqliteStore.from_conn_string(path) as store:
        assert texts(store) == [str(PRIOR)]
        assert len(open_episodes(store)) == 1
        events = stream(an_agent(store, model=player(1), abandoned_after=0.0), "custom", sync=True)
        assert events[0]["version"] == 2, "the abandoned episode is learnt before a hypothesis is drawn"
        assert [counts(text).tolist() for text in texts(store)] == [[0, 0], [1, 0], [2, 0]]


@both_ways
def test_an_abandoned_episode_that_resumes_is_counted_once(sync):
    store = InMemoryStore()

    def meanwhile(number):
        if number == 2:
            # Another run treats this run as abandoned after its first step.
            invoke(an_agent(store, pull=machine()[0], model=player(1), abandoned_after=-1.0), sync=True)

    invoke(an_agent(store, pull=machine(meanwhile)[0], model=player(3)), sync=sync)
    assert counts(texts(store)[-1]).sum() == 4
    assert len(texts(store)) == 4


def refusing(say):
    """Exact roles, except for the updater's answer."""
    exact = exact_roles()

    def respond(messages):
        return say() if "<experience>" in messages[-1].text else exact.respond(messages)

    return ScriptedChatModel(respond=respond)


@both_ways
def test_a_failed_update_is_reported_and_repeated_at_the_next_start(sync, caplog):
    store, answer = InMemoryStore(), RuntimeError("content filter")
    with caplog.at_level(logging.WARNING):
        events = stream(an_agent(store, roles=refusing(lambda: answer)), ["custom", "values"], sync=sync)
    assert events[-1][1]["messages"][-1].text == "Enough.", "the user still gets an answer"
    event = next(chunk for mode, chunk in events if mode == "custom" and chunk["type"] == "psrl.posterior")
    assert event["version"] == 1
    assert "stays at version 1" in event["failed"][0]
    assert "stays at version 1" in caplog.text
    assert texts(store) == [str(PRIOR)]
    (first, *_) = stream(an_agent(store), "custom", sync=sync)
    assert first["version"] == 2
    assert first["usage"]["posterior updater"]["calls"] == 1
    with pytest.raises(UpdateError):
        invoke(an_agent(store, roles=refusing(lambda: answer), on_update_error="raise"), sync=sync)


@both_ways
def test_a_sampler_that_fails(sync):
    store = InMemoryStore()
    mute = ScriptedChatModel(respond=lambda messages: "No idea.")
    with pytest.raises(RoleError, match="posterior sampler did not answer in the requested form"):
        invoke(an_agent(store, roles=mute), sync=sync)
    assert texts(store) == [str(PRIOR)]


def test_a_slow_role_times_out():
    slow = ScriptedChatModel(respond=lambda messages: "", delay=30.0)
    with pytest.raises(RoleError, match="no answer within"):
        invoke(an_agent(InMemoryStore(), roles=RoleModel(slow, timeout=0.05)), sync=False)


def test_each_role_has_its_model():
    calls = []

    def named(name, model):
        def respond(messages):
            calls.append(name)
            return model.respond(messages)

        return ScriptedChatModel(respond=respond)

    exact = exact_roles()
    agent = an_agent(
        InMemoryStore(),
        roles=named("sampler", exact),
        updater=named("updater", exact),
        policy=named("policy", player(1)),
        model=ScriptedChatModel(respond=lambda messages: pytest.fail("the policy acts")),
    )
    invoke(agent, sync=True)
    assert calls == ["sampler", "policy", "policy", "updater"]


def test_a_posterior_needs_a_store_or_memory():
    with pytest.raises(ConfigurationError, match="with store="):
        invoke(an_agent(None), sync=True)
    memory = InMemoryPosterior(str(PRIOR))
    invoke(an_agent(None, memory=memory), sync=True)
    assert len(asyncio.run(memory.history())) == 2


def test_each_user_can_have_a_posterior():
    store = InMemoryStore()
    roles = exact_roles()
    middleware = PosteriorSampling(roles, prior=PRIOR, namespace=lambda runtime: ("of", runtime.context["user"]))
    agent = create_agent(player(1), [machine()[0]], middleware=[middleware], store=store, context_schema=dict)
    for user in ("ada", "ada", "bob"):
        agent.invoke(GIVEN, context={"user": user})
    versions = {user: len(asyncio.run(StorePosterior(store, ("of", user)).history())) for user in ("ada", "bob")}
    assert versions == {"ada": 3, "bob": 2}


def test_wrong_settings():
    exact = exact_roles()
    with pytest.raises(ConfigurationError, match="unknown options: namspace"):
        PosteriorSampling(exact, **{"namspace": "x"})
    with pytest.raises(ConfigurationError, match="no role can update the posterior"):
        PosteriorSampling(object())
    with pytest.raises(ConfigurationError, match="must use"):
        PosteriorSampling(exact, policy=RoleModel(exact, prompt="Act."))
    with pytest.raises(ConfigurationError, match="no setting `temperature`"):
        RoleModel(exact, temperature=0.5)
