"""`astream_events` shows the models of the answer, and of no other particle."""

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from amc_agents import AmcSettings
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from tests.arguments import arguments
from tests.population.worlds import Prefers, digits, number_agent, start, sum_world


async def test_the_answers_models_are_shown_with_those_of_its_ancestors():
    drawn = []

    def respond(messages):
        drawn.append(digits(messages))
        return drawn[-1]

    graph = amc(number_agent(respond), Prefers(0), environment=sum_world, n_particles=4, resample=AtSteps(2), seed=0)
    events = [event async for event in graph.astream_events(start(), version="v2")]
    shown = [event["data"]["output"].text for event in events if event["event"] == "on_chat_model_end"]
    answer = events[-1]["data"]["output"]["messages"]
    assert shown == [message.text for message in answer if isinstance(message, AIMessage)]
    assert len(shown) == 4 < len(drawn)


async def test_tokens_are_shown_and_at_once_if_a_single_particle_is_left():
    async def played(**options):
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
        graph = amc(create_agent(model, []), "uniform", **arguments(n_particles=1, step_after="model", **options))
        events = [event async for event in graph.astream_events(start(), version="v2")]
        tokens = [event["data"]["chunk"].text for event in events if event["event"] == "on_chat_model_stream"]
        at = [(event["event"], event["name"]) for event in events]
        first = [event for event, _ in at].index("on_chat_model_stream")
        return "".join(tokens), first < at.index(("on_chain_end", "propagate"))

    assert await played() == ("one two three", False)
    assert await played(emit="settled") == ("one two three", True)


async def test_every_particles_models_are_shown_by_choice_and_named():
    drawn = []

    def respond(messages):
        drawn.append(digits(messages))
        return drawn[-1]

    graph = amc(
        number_agent(respond),
        Prefers(0),
        environment=sum_world,
        n_particles=4,
        resample=AtSteps(2),
        seed=0,
        settings=AmcSettings(emit="all"),
    )
    events = [event async for event in graph.astream_events(start(), version="v2")]
    ended = [event for event in events if event["event"] == "on_chat_model_end"]
    assert sorted(event["data"]["output"].text for event in ended) == sorted(drawn)
    assert {event["metadata"]["particle"] for event in ended} == {0, 1, 2, 3}
