"""`emit="settled"`: the answer's messages are streamed while the search runs."""

import asyncio
import itertools
from dataclasses import replace
from typing import TypedDict

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents import AmcSettings
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.features.settled import shared_prefix
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import effect
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import Adaptive, AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import TASK, EndsByNine, Prefers, ReturnSoFar, digits, number_agent, start, tool_caller
from tests.variants import variants

MODES = ["messages", "custom"]


class NineWins(EndsByNine):
    """A world in which the action 9 ends the episode, with a return that no other particle reaches."""

    async def step(self, action):
        answer = await super().step(action)
        return replace(answer, reward=90.0) if action == "9" else answer


def nine_wins(state):
    return NineWins(4), TASK


def wrapped(agent=None, critic=None, **settings):
    given = {"environment": nine_wins, "n_particles": 4, "resample": EveryStep(), "beta": 1.0, "emit": "settled"}
    return amc(agent or number_agent(), critic or ReturnSoFar(), **arguments(**given | settings))


class Streamed:
    """The messages of a stream, those before the end of the search, and its run."""

    def __init__(self, events):
        self.messages, self.run, self.n_early = [], None, 0
        for mode, event in events:
            if mode == "messages":
                self.messages.append(event[0])
            elif event["type"] == "amc.run":
                self.run, self.n_early = event["run"], len(self.messages)

    @property
    def ids(self):
        return [message.id for message in self.messages]

    @property
    def answer(self):
        """Ids of the answer's messages, without the input's."""
        return [message.id for message in self.run.best_output["messages"][1:]]


def streamed(graph, sync=True, **options):
    async def events():
        return [event async for event in graph.astream(start(), stream_mode=MODES, **options)]

    return Streamed(graph.stream(start(), stream_mode=MODES, **options) if sync else asyncio.run(events()))


SELECTS, FINISHED = ("return", "value", "weight", "sample"), ("retire", "keep")
SCHEDULES = EveryStep(), AtSteps(1, 2), EssBelow(0.6)


@pytest.mark.thorough
async def test_settled_messages_begin_the_answer_and_none_is_repeated():
    early, retired = 0, 0
    for seed, (select, finished, resample) in enumerate(itertools.product(SELECTS, FINISHED, SCHEDULES)):
        graph = wrapped(select=select, finished=finished, seed=seed, beta=0.5, resample=resample)
        seen = Streamed([event async for event in graph.astream(start(), stream_mode=MODES)])
        assert seen.ids == seen.answer
        early, retired = early + bool(seen.n_early), retired + (seen.run.best_index >= 4)
    assert early > 2
    assert retired > 2


class PrefersOneUnfinished:
    """Prefers a single unfinished particle to all others, and those that ended with a nine a little more."""

    async def values(self, trajectories):
        won = np.array([trajectory.steps[-1].action == "9" for trajectory in trajectories])
        return np.where(won, 1e4 + 1, 1e4 * (np.cumsum(~won) == 1))


@pytest.mark.parametrize(
    ("settings", "best_index"),
    [({"finished": "keep"}, [-1]), ({"hide_rewards": True}, range(4, 9))],
    ids=["archived", "retired"],
)
def test_an_answer_that_left_the_population_keeps_the_stream_waiting(settings, best_index):
    # A particle ends at once with the best return, and all others soon descend from a single one.
    def respond(messages):
        return f"Action: {9 if len(messages) == 1 and particle_rng().random() < 0.3 else 1}"

    seen = streamed(wrapped(number_agent(respond), PrefersOneUnfinished(), resample=AtSteps(2, 3), seed=1, **settings))
    assert seen.run.best_index in best_index
    assert seen.ids == seen.answer


@variants("sync", [True, False])
def test_the_stream_changes_nothing_else(sync):
    at_end, settled = (streamed(wrapped(seed=5, emit=emit), sync) for emit in ("end", "settled"))
    assert at_end.n_early == 0 < settled.n_early < len(settled.ids)
    assert settled.ids == settled.answer
    assert [message.text for message in settled.messages] == [message.text for message in at_end.messages]
    assert settled.run.log_evidence == at_end.run.log_evidence
    output = wrapped(seed=5).invoke(start())
    assert [message.text for message in output["messages"][1:]] == [message.text for message in settled.messages]


@variants("sync", [True, False])
@variants("subgraphs", [True, False])
def test_a_nested_graph_streams_as_a_subgraph_and_no_message_twice(sync, subgraphs):
    builder = StateGraph(MessagesState)
    builder.add_node("team", wrapped(seed=5))
    builder.add_edge(START, "team")
    outer = builder.compile()

    async def events():
        return [event async for event in outer.astream(start(), stream_mode=MODES, subgraphs=True)]

    if subgraphs:
        heard = [*outer.stream(start(), stream_mode=MODES, subgraphs=True)] if sync else asyncio.run(events())
        seen = Streamed(event[1:] for event in heard)
        assert seen.ids == seen.answer
        assert 0 < seen.n_early < len(seen.ids)
        assert {event[0][0].split(":")[0] for event in heard} == {"team"}
    else:
        shown = [message.id for message, _ in outer.stream(start(), stream_mode="messages")]
        assert len(shown) == len(set(shown)) > 0, "the node's output, at its end"


class Spelling(ScriptedChatModel):
    """Streams its answer in pieces of four characters."""

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        text = self.respond(messages)
        for piece in (text[i : i + 4] for i in range(0, len(text), 4)):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        text = self.respond(messages)
        for piece in (text[i : i + 4] for i in range(0, len(text), 4)):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                await run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk


def fails_in_one_particle():
    """A model that fails once, at the second step of whichever particle asks first; all particles say the same."""
    asked = itertools.count()

    def respond(messages):
        if len(messages) > 1 and next(asked) == 0:
            raise ConnectionError("the server restarts")
        return f"Thought: any\nAction: {len(messages)}"

    return respond


def text_of(messages):
    """The text of each message by its id, tokens joined."""
    texts = {}
    for message in messages:
        texts[message.id] = texts.get(message.id, "") + message.text
    return texts


@variants("n_particles", [1, 2])
@variants("sync", [True, False])
def test_the_last_particle_streams_token_by_token(n_particles, sync):
    respond = digits if n_particles == 1 else fails_in_one_particle()
    agent = text_agent(Spelling(respond=respond))
    seen = streamed(wrapped(agent, "uniform", n_particles=n_particles, quorum=1, seed=2, resample=Never()), sync)
    tokens = [message for message in seen.messages if isinstance(message, AIMessageChunk)]
    assert len(tokens) > len(seen.run.best.steps)
    assert [*text_of(seen.messages)] == seen.answer
    assert [*text_of(seen.messages).values()] == [message.text for message in seen.run.best_output["messages"][1:]]


@pytest.mark.skipif(not hasattr(BaseCallbackHandler, "on_stream_event"), reason="needs a newer langchain-core")
@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
async def test_a_reader_of_protocol_events_gets_whole_messages():
    graph = wrapped(text_agent(Spelling(respond=digits)), "uniform", n_particles=1, seed=2, resample=Never())
    messages = (await graph.astream_events(start(), version="v3")).messages
    shown = [await message.text async for message in messages]
    assert shown == [message.text for message in (await graph.ainvoke(start()))["messages"][1:]]


def test_particles_that_differ_do_not_stream_tokens():
    seen = streamed(wrapped(text_agent(Spelling(respond=digits)), seed=2))
    assert not any(isinstance(message, AIMessageChunk) for message in seen.messages)
    assert seen.ids == seen.answer


def test_nothing_is_settled_while_new_particles_may_start():
    class Unsure:
        async def values(self, trajectories):
            return np.full(len(trajectories), 0.1)

    graph = wrapped(critic=Unsure(), n_particles=Adaptive(1, 4), success_reward=1.0, hide_rewards=True, seed=0,
                    resample=Never())  # fmt: skip
    seen = streamed(graph)
    assert seen.n_early == 0
    assert any("more were started" in note for note in seen.run.notes)
    assert seen.ids == seen.answer


@pytest.mark.parametrize("n_particles", [1, 2])
def test_a_message_without_an_id_waits_for_the_end(n_particles):
    class State(TypedDict):
        messages: list

    @effect("read")
    def tools(state):
        return {"messages": [*state["messages"], AIMessage("Action: 1")]}

    builder = StateGraph(State)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) > 3 else "tools")
    seen = streamed(
        amc(
            builder.compile(),
            Prefers(0),
            n_particles=n_particles,
            settings=AmcSettings(emit="settled"),
            resample=EveryStep(),
        )
    )
    assert seen.n_early == (3 if n_particles == 1 else 0)
    assert [message.text for message in seen.messages].count("Action: 1") == 3
    assert len(seen.ids) == len(set(seen.ids))


def test_a_rewritten_history_repeats_no_message():
    @effect("read")
    def tools(state):
        n = len(state["messages"])
        said: list[BaseMessage] = [AIMessage(f"Action: {n}", id=f"said {n}")]
        if n == 3:
            said = [RemoveMessage(state["messages"][1].id), *said]
        return {"messages": [*said, HumanMessage("ok")]}

    builder = StateGraph(MessagesState)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) > 5 else "tools")
    seen = streamed(
        amc(builder.compile(), Prefers(0), n_particles=2, settings=AmcSettings(emit="settled"), resample=EveryStep())
    )
    assert len(seen.ids) == len(set(seen.ids))
    assert set(seen.answer) < set(seen.ids), "what was shown stays shown"


@pytest.mark.thorough  # quick: test_the_stream_changes_nothing_else
def test_a_resumed_run_streams_its_whole_answer():
    graph = wrapped(seed=5, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    graph.invoke(start(), config, interrupt_before=["resample"])
    resumed = Streamed(graph.stream(None, config, stream_mode=MODES))
    assert resumed.n_early > 0
    assert resumed.ids == resumed.answer


async def test_the_messages_after_a_commit_are_settled_before_the_end():
    @tool
    @effect("commit")
    async def say(number: int) -> str:
        """Say a number."""
        return "said"

    agent = create_agent(tool_caller(2), [say])
    seen = streamed(
        amc(agent, "uniform", reward=lambda state: 0.0, n_particles=3, settings=AmcSettings(emit="settled"), seed=0)
    )
    assert seen.n_early >= 4
    assert seen.ids == seen.answer


def test_only_known_emissions_are_accepted():
    with pytest.raises(ConfigurationError, match="emit must be one of 'end', 'settled', 'all', got 'now'"):
        wrapped(emit="now")


def test_histories_share_messages_not_ids():
    first, second, numbered = AIMessage("a", id="1"), AIMessage("b", id="2"), AIMessage("c", id="2")
    assert shared_prefix([[first, second], [first, numbered]]) == [first]
    assert shared_prefix([[first, second], [AIMessage("a", id="1"), second]]) == [first, second]
    assert shared_prefix([[first, second], [first]]) == [first]
    assert shared_prefix([[AIMessage("a")], [AIMessage("a")]]) == []
    assert shared_prefix([]) == []
