"""LLM-IDS's middleware inside real agents of `create_agent`, with a chat model that estimates exactly."""

from __future__ import annotations

import asyncio
import math
import re

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore

from amc_agents import InformationDirected
from amc_agents.errors import ConfigurationError, RoleError
from amc_agents.psrl.posterior.priors import UniformOver
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.testing.exact_roles import exact_roles_model
from amc_agents.testing.scripted import ScriptedChatModel

ARMS, BEST = range(6), 1
RULES = "One of the arms 1 to 5 pays 1, the others of them 0. Arm 0 pays 1 / (2 x the number of the best arm)."
PRIOR = UniformOver(("1", "2", "3", "4", "5"))
GIVEN = {"messages": [("user", "Earn.")]}
both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def payment(arm, best):
    return 1 / (2 * best) if arm == 0 else float(arm == best)


def exact_roles():
    """A chat model that estimates and updates exactly: arm 0 tells the best arm, any other whether it is the best."""

    def updated(posterior, step):
        arm, paid = re.fullmatch(r"Arm (\d) paid (\S+)\.", step.observation).groups()
        return posterior.given(lambda best: abs(payment(int(arm), int(best)) - float(paid)) < 1e-6)

    def stakes(posterior, steps):
        paid = {arm: [payment(arm, int(best)) for best in posterior.items] for arm in ARMS}
        bits = {arm: [values.count(value) / len(values) for value in set(values)] for arm, values in paid.items()}
        return {
            str(arm): (1 - sum(paid[arm]) / len(paid[arm]), sum(-share * math.log2(share) for share in bits[arm]))
            for arm in ARMS
        }

    return exact_roles_model(updated, stakes=stakes)


@tool
def pull(arm: int) -> str:
    """Pull an arm."""
    return f"Arm {arm} paid {payment(arm, BEST):.6f}."


def in_words(model):
    """The model, told the tool calls of a prompt as the arms they pull."""

    def respond(messages):
        text = re.sub(r'\{"args": \{"arm": (\d+)\}, "name": "pull"\}', r"\1", messages[-1].text)
        return model.respond([messages[-1].model_copy(update={"content": text})])

    return ScriptedChatModel(respond=respond)


def once(messages):
    """One pull, after which the model sums up."""
    pulled = isinstance(messages[-1], ToolMessage)
    return [] if pulled else [{"name": "pull", "args": {"arm": arm}} for arm in ARMS]


def an_agent(store, model=None, actions=once, **options):
    middleware = InformationDirected(
        model or in_words(exact_roles()),
        actions,
        **{"prior": PRIOR, "world": RULES, "seed": 1, **options},
    )
    sums_up = ScriptedChatModel(respond=lambda messages: f"Seen: {messages[-1].text}")
    return create_agent(sums_up, [pull], middleware=[middleware], store=store)


def stream(agent, mode, *, sync):
    async def chunks():
        return [chunk async for chunk in agent.astream(GIVEN, stream_mode=mode)]

    return list(agent.stream(GIVEN, stream_mode=mode)) if sync else asyncio.run(chunks())


@both_ways
def test_it_asks_the_arm_that_tells_and_then_takes_the_best(sync):
    store = InMemoryStore()
    agent = an_agent(store)
    runs = [stream(agent, ["values", "custom"], sync=sync) for _ in range(3)]
    finals = [[chunk for mode, chunk in run if mode == "values"][-1]["messages"] for run in runs]
    assert [[call["args"]["arm"] for call in messages[1].tool_calls] for messages in finals] == [[0], [BEST], [BEST]]
    assert finals[1][-1].text == f"Seen: Arm {BEST} paid 1.000000."
    first, second, third = ([c for mode, c in run if mode == "custom"] for run in runs)
    assert [event["type"] for event in first] == ["ids.episode", "ids.decision", "ids.posterior"]
    assert first[1]["probabilities"] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert {role: usage["calls"] for role, usage in first[1]["usage"].items()} == {
        "regret estimator": 6,
        "information estimator": 6,
    }
    assert (second[1]["cached"], third[1]["cached"]) == (False, True), "the posterior had nothing left to learn"
    assert third[1]["usage"] == {}
    memory = StorePosterior(store, "amc.posterior")
    assert asyncio.run(memory.head()).text == f"Uniform over {{{BEST}}}"


@both_ways
def test_texts_are_actions_too(sync):
    agent = an_agent(InMemoryStore(), exact_roles(), [str(arm) for arm in ARMS])
    (*_, final) = stream(agent, "values", sync=sync)
    assert final["messages"][-1].text == "0"


@both_ways
def test_an_estimate_that_cannot_be_had(sync):
    store = InMemoryStore()
    model = ScriptedChatModel(respond=lambda messages: "Expected regret: quite a lot")
    with pytest.raises(RoleError, match="estimator did not answer in the requested form"):
        stream(an_agent(store, model), "values", sync=sync)
    assert asyncio.run(StorePosterior(store, "amc.posterior").head()).number == 1


def test_an_action_in_another_form():
    agent = an_agent(InMemoryStore(), actions=[{"tool": "pull"}])
    with pytest.raises(ConfigurationError, match="expected an action as a text or"):
        agent.invoke(GIVEN)
