"""Particles of one population that are sampled with different settings of the agent."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents import AmcSettings
from amc_agents.envs.registry import world
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import Adaptive, EveryStep, Never
from tests.arguments import arguments
from tests.population.worlds import ReturnSoFar, say, start, sum_world
from tests.scripted_http import scripted_server

DIGITS = [{"digit": 1}, {"digit": 2}, {"digit": 7}]


def reading_agent():
    """An agent that says the digit in its `configurable`, and then the other value there."""

    def say(messages, config):
        own = config["configurable"]
        return AIMessage(f"Thought: {own.get('other', '')}\nAction: {own['digit']}")

    return text_agent(RunnableLambda(say))


def digits_of(run):
    return [{step.action for step in trajectory.steps} for trajectory in run.population.trajectories]


def reading_graph(**settings):
    return amc(
        reading_agent(),
        ReturnSoFar(),
        **arguments(environment=sum_world, **{"proposals": DIGITS, "seed": 1, **settings}),
    )


def test_particles_begin_with_the_proposals_in_turn():
    run = reading_graph(n_particles=5, resample=Never()).run(start())
    assert digits_of(run) == [{"1"}, {"2"}, {"7"}, {"1"}, {"2"}]
    assert run.config["proposals"] == DIGITS


def test_offspring_keep_their_ancestors_proposal():
    run = reading_graph(n_particles=6, resample=EveryStep(), beta=3.0).run(start())
    assert any(point.ancestors is not None for point in run.history)
    assert all(len(digits) == 1 for digits in digits_of(run))
    assert digits_of(run).count({"7"}) > 2, "no slot changed its proposal"
    assert run.best.return_ == 28.0


@pytest.mark.thorough  # quick: the frozen record "proposals"
def test_a_restored_run_keeps_the_proposals():
    class Breaking(ReturnSoFar):
        broken = False

        async def values(self, trajectories):
            if len(self.batches) == 2 and not self.broken:
                self.broken = True
                raise RuntimeError("the machine dies")
            return await super().values(trajectories)

    settings = {"environment": sum_world, "n_particles": 6, "resample": EveryStep(), "beta": 3.0, "seed": 1}
    plain = amc(reading_agent(), ReturnSoFar(), **arguments(proposals=DIGITS, **settings)).run(start())
    broken = amc(reading_agent(), Breaking(), **arguments(proposals=DIGITS, checkpointer=InMemorySaver(), **settings))
    thread = {"configurable": {"thread_id": "t"}}
    with pytest.raises(Exception, match="the machine dies"):
        broken.run(start(), thread)
    assert digits_of(broken.run(None, thread)) == digits_of(plain)


def test_a_second_round_goes_on_with_the_next_proposals():
    run = reading_graph(n_particles=Adaptive(4, 8), resample=Never(), hide_rewards=True).run(start())
    assert sorted(map(min, digits_of(run))) == ["1", "1", "1", "2", "2", "2", "7", "7"]


def test_other_values_of_the_call_reach_every_particle():
    run = reading_graph(n_particles=3, resample=Never()).run(start(), {"configurable": {"digit": 9, "other": "kept"}})
    assert digits_of(run)[0] == {"1"}
    assert {step.thought for trajectory in run.population.trajectories for step in trajectory.steps} == {"kept"}


@pytest.mark.thorough  # quick: the frozen record "proposals"
def test_a_chat_model_with_a_configurable_temperature():
    model = EmbeddedChatModel(model="crafting").configurable_fields(temperature=ConfigurableField(id="temperature"))
    spec = world("crafting")
    [task] = spec.tasks(1, "train", 0)
    graph = amc(
        text_agent(model), "uniform", environment=lambda _: (spec.make(), task), n_particles=4, resample=Never(),
        horizon=3, settings=AmcSettings(proposals=[{"temperature": 0.0}, {"temperature": 2.0}]), seed=0,
    )  # fmt: skip
    greedy, hot, again, other = graph.run({"messages": [("user", task.instruction)]}).population.trajectories
    assert [step.action for step in greedy.steps] == [step.action for step in again.steps]
    assert [step.action for step in hot.steps] != [step.action for step in other.steps]


def test_an_agent_with_tools_and_a_configurable_model_of_a_provider():
    call = {"id": "c", "type": "function", "function": {"name": "say", "arguments": '{"number": 3}'}}

    def answer(asked):
        spoken = any(message["role"] == "tool" for message in asked["messages"])
        message = {"role": "assistant", "content": "done"} if spoken else {"role": "assistant", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    with scripted_server({"POST /v1/chat/completions": answer}) as server:
        model = init_chat_model(
            "m", model_provider="openai", base_url=f"{server.url}/v1", api_key="k",
            configurable_fields=("temperature",), temperature=1.0,
        )  # fmt: skip
        graph = amc(
            create_agent(model, [say]), "uniform", environment=sum_world, n_particles=4, resample=Never(),
            settings=AmcSettings(proposals=[{"temperature": 0.25}, {"temperature": 0.75}]), seed=0,
        )  # fmt: skip
        run = graph.run(start())
    assert [trajectory.steps[0].reward for trajectory in run.population.trajectories] == [3.0] * 4
    assert sorted(asked["temperature"] for _, asked, _ in server.asked) == [0.25] * 4 + [0.75] * 4


def test_a_run_without_proposals_does_not_mention_them():
    run = amc(reading_agent(), environment=sum_world, n_particles=2).run(start(), {"configurable": {"digit": 3}})
    assert "proposals" not in run.config


@pytest.mark.parametrize(
    ("proposals", "message"),
    [
        ([], "expected 1 to n_particles=2"),
        (DIGITS, "expected 1 to n_particles=2"),
        ({"temperature": 1}, "list of mappings"),
        ([0.5, 1.0], "list of mappings"),
        ([{"thread_id": "a"}], "'thread_id'"),
        ([{"checkpoint_ns": "a"}], "'checkpoint_ns'"),
        ([{"critic": "uniform"}], "'critic'"),
        ([{1: 2}], "the key 1"),
    ],
)
def test_proposals_of_another_form_are_refused(proposals, message):
    with pytest.raises(ConfigurationError, match=message):
        reading_graph(n_particles=2, proposals=proposals)
