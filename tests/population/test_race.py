"""Races: the first to finish is the answer, and the others stop at once."""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Callable
from itertools import count
from typing import Annotated, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from amc_agents import AmcSettings, Budget, EarlyStop, Race, amc
from amc_agents.errors import AgentContractError, ConfigurationError, PopulationError
from amc_agents.runtime.effects import effect
from amc_agents.smc import Adaptive, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import (
    EFFECTS,
    Ledger,
    call,
    plain_loop,
    refunds_in,
    results,
    shop_tools,
    start,
)
from tests.variants import variants


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    number: int
    seen: Annotated[int, operator.add]


class Runner:
    """An agent whose runs are given: run number n needs `lengths[n]` steps of `sleep[n]` seconds."""

    def __init__(self, lengths, *, answers=None, sleep=0.0):
        self.lengths, self.answers = lengths, answers or list(map(str, range(len(lengths))))
        self.sleep = sleep if isinstance(sleep, list) else [sleep] * len(lengths)
        self.numbers, self.steps = count(), 0
        self.watch: Callable[[], object] = lambda: None

    def graph(self):
        @effect("read")
        async def act(state: State):
            number = state["number"] if state.get("number", -1) >= 0 else next(self.numbers)
            self.steps += 1
            self.watch()
            await asyncio.sleep(self.sleep[number])
            seen = state["seen"] + 1
            if seen >= self.lengths[number]:
                said: list[AnyMessage] = [AIMessage(self.answers[number])]
            else:
                call = {"name": "look", "args": {"at": seen}, "id": f"{number}-{seen}"}
                said = [AIMessage("", tool_calls=[call]), ToolMessage(f"run {number}", tool_call_id=call["id"])]
            return {"messages": said, "number": number, "seen": 1}

        def ends(state: State):
            return END if isinstance(state["messages"][-1], AIMessage) else "act"

        builder = StateGraph(State)
        builder.add_node("act", act)
        builder.add_edge(START, "act")
        builder.add_conditional_edges("act", ends, ["act", END])
        return builder.compile()


GIVEN = {"messages": [("user", "Go.")], "number": -1, "seen": 0}


def run(runner, *, sync=False, n_particles=None, **settings):
    n_particles = n_particles or len(runner.lengths)
    graph = amc(runner.graph(), n_particles=n_particles, step_after="act", stateless_tools=True, **settings)
    return graph.run(GIVEN) if sync else asyncio.run(graph.arun(GIVEN))


@pytest.mark.parametrize("sync", [False, True])
def test_the_first_to_finish_is_the_answer_and_the_others_stop(sync):
    runner = Runner([9, 2, 9, 9], sleep=0.02)
    found = run(runner, sync=sync, race=Race())
    assert found.best_output["messages"][-1].content == "1"
    assert found.stopped_by == "race"
    assert any("the race ended with particle 1 after 2 steps" in note for note in found.notes)
    # All 29 steps would be made without a race.
    assert runner.steps <= 16


def test_a_step_in_progress_is_cancelled_at_once():
    numbers, cancelled = count(), []

    async def wait(state: State):
        number = next(numbers)
        try:
            await asyncio.sleep(600 * number)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return {"messages": [AIMessage(str(number))]}

    builder = StateGraph(State)
    builder.add_node("act", wait)
    builder.add_edge(START, "act")
    builder.add_edge("act", END)
    graph = amc(builder.compile(), n_particles=3, step_after="act", stateless_tools=True, race=Race())
    found = asyncio.run(asyncio.wait_for(graph.arun(GIVEN), 60))
    assert found.best_output["messages"][-1].content == "0"
    assert sorted(cancelled) == [1, 2]


def test_only_an_accepted_run_wins():
    runner = Runner([1, 2, 3], answers=["bad", "good", "good"])
    found = run(runner, race=Race(accept=lambda trajectory: trajectory.steps[-1].action == "good"))
    assert found.best_output["number"] == 1
    assert found.stopped_by == "race"


def test_if_none_is_accepted_all_end_and_one_is_the_answer():
    runner = Runner([1, 2, 3])
    found = run(runner, race=Race(accept=lambda trajectory: False))
    assert found.stopped_by is None
    assert runner.steps == 6
    assert found.best_output["number"] in (0, 1, 2)


def test_several_may_finish_before_one_is_selected():
    runner = Runner([2, 1, 9, 9], sleep=0.01)
    found = run(runner, race=Race(finish=2), select="longest")
    assert found.best_output["number"] == 0
    assert found.stopped_by == "race"


def test_a_particle_that_the_horizon_cuts_does_not_win():
    runner = Runner([9, 9, 2])
    found = run(runner, race=Race(), horizon=3)
    assert found.best_output["number"] == 2


def test_by_steps_the_shortest_wins_although_it_is_slow():
    runner = Runner([5, 2, 40], sleep=[0, 0.1, 0])
    found = run(runner, race=Race(by="steps"))
    assert (found.best_output["number"], found.stopped_by) == (1, "race")
    assert [trajectory.done for trajectory in found.population.trajectories] == [True, True, False]
    # Run 2 goes no further than the five steps of run 0, which it cannot undercut.
    assert runner.steps <= 5 + 2 + 6


def test_by_steps_a_slow_run_that_could_undercut_is_waited_for():
    runner = Runner([3, 2, 4], sleep=[0, 0.1, 0])
    assert run(runner, race=Race(by="steps", finish=2), select="longest").best_output["number"] == 0
    assert runner.steps <= 3 + 2 + 4


def test_an_async_function_accepts_in_the_particles_own_task():
    async def accept(trajectory):
        await asyncio.sleep(0.01)
        return trajectory.answer == "good"

    assert run(Runner([1, 2, 3], answers=["bad", "good", "good"]), race=Race(accept=accept)).best_output["number"] == 1


def test_the_critic_accepts_above_a_value():
    def critic(trajectories):
        return [{"bad": 0.2, "good": 0.7}.get(trajectory.answer, 0.0) for trajectory in trajectories]

    runner = Runner([1, 2, 9], answers=["bad", "good", "good"], sleep=0.01)
    found = run(runner, critic=critic, race=Race(accept=0.5))
    assert (found.best_output["number"], found.stopped_by) == (1, "race")
    with pytest.raises(ConfigurationError, match="no critic is named"):
        run(Runner([1]), race=Race(accept=0.5))


class Judge:
    """Values run n at `worth[n]`, and counts how often it is asked."""

    def __init__(self, worth):
        self.worth, self.asked = worth, 0

    async def values(self, trajectories):
        self.asked += len(trajectories)
        return [self.worth[int(trajectory.steps[0].observation.split()[1])] for trajectory in trajectories]


def test_hopeless_particles_are_stopped_early():
    runner, judge = Runner([3, 5, 4]), Judge([0.1, 0.9, 0.2])
    found = run(runner, critic=judge, race=Race(stop=EarlyStop(at_step=2, below=0.5)))
    assert (found.best_output["number"], found.stopped_by, runner.steps) == (1, "race", 2 + 5 + 2)
    assert judge.asked == 3
    assert any(
        "early stop: 2 times the critic valued a particle below 0.5 after 2 steps" in note for note in found.notes
    )
    assert math.isnan(found.log_evidence)
    with pytest.raises(PopulationError, match="no answer"):
        run(Runner([3]), critic=Judge([0.1]), race=Race(stop=EarlyStop(at_step=2, below=0.5)))


@variants("sync", [False, True])
@variants(("restarts", "number", "steps"), [(1, 1, 2 + 4), (2, 2, 2 + 2 + 5), (9, 3, 2 + 2 + 2 + 6)])
def test_a_stopped_particle_begins_anew_until_no_restart_is_left(restarts, number, steps, sync):
    runner, judge = Runner([3, 4, 5, 6]), Judge([0.1, 0.2, 0.3, 0.9])
    stop = EarlyStop(at_step=2, below=0.5, restarts=restarts)
    found = run(runner, sync=sync, n_particles=1, critic=judge, race=Race(stop=stop), horizon=6)
    assert (found.best_output["number"], runner.steps) == (number, steps)
    assert len(found.best.steps) == [3, 4, 5, 6][number]
    assert math.isnan(found.log_evidence)


def test_the_critic_chooses_among_those_that_finished():
    def critic(trajectories):
        return [{"0": 0.1, "1": 0.9, "2": 0.5}.get(trajectory.answer, 2.0) for trajectory in trajectories]

    found = run(Runner([1, 2, 2, 9], sleep=[0, 0, 0, 60]), critic=critic, race=Race(finish=3), select="value")
    assert found.best_output["number"] == 1


@pytest.mark.parametrize(
    ("race", "settings", "message"),
    [
        (lambda: Race(finish=0), {}, "finish must be at least 1, got 0"),
        (lambda: Race(by="luck"), {}, "by must be one of clock, steps, tokens, got 'luck'"),
        (lambda: Race(stop=0.5), {}, "stop must be an EarlyStop"),
        (lambda: Race(accept="yes"), {}, "accept must be a function or a number"),
        (lambda: EarlyStop(at_step=0, below=0.5), {}, "at_step of at least 1"),
        (lambda: Race(finish=3), {}, "finish=3 takes as many particles, got 2"),
        (lambda: Race(), {"n_particles": Adaptive(1, 2)}, "a fixed number of particles"),
        (lambda: Race(by="steps"), {"resample": EveryStep()}, "omit resample="),
    ],
)
def test_an_impossible_race_is_refused(race, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        run(Runner([1, 1]), race=race(), **settings)


@pytest.mark.parametrize(("select", "best"), [("shortest", {1}), ("longest", {2}), ("vote", {0, 2})])
def test_selection_by_the_text_needs_no_critic(select, best):
    runner = Runner([2, 1, 3], answers=["yes", "no", "Yes "])
    assert run(runner, select=select, resample=Never()).best_output["number"] in best


def test_without_a_race_a_critic_is_needed():
    with pytest.raises(ConfigurationError, match="no critic is named"):
        run(Runner([1, 1]), resample=Never())


class Model(ScriptedChatModel):
    """A model whose answers may have 50 tokens, and never come where the response is "stuck"."""

    def _get_ls_params(self, stop=None, **options):
        return {**super()._get_ls_params(stop, **options), "ls_max_tokens": 50}

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        answer = await super()._agenerate(messages, stop, run_manager, **options)
        if answer.generations[0].message.content == "stuck":
            await asyncio.sleep(600)
        return answer


def chat(turns, *, sizes=None, reports=True):
    """An agent whose run n makes `turns[n]` calls of a tool and answers n; each request has `sizes[n]` tokens."""
    numbers, sizes = count(), sizes or [15 + 100 * number for number in range(len(turns))]

    def respond(messages):
        looked = [message for message in messages if isinstance(message, ToolMessage)]
        number = int(looked[0].content) if looked else next(numbers)
        usage = {"input_tokens": 10, "output_tokens": sizes[number] - 10, "total_tokens": sizes[number]}
        calls = [{"name": "look", "args": {"number": number}, "id": f"{number}-{len(looked)}"}]
        return AIMessage(
            str(number) if turns[number] else "stuck",
            tool_calls=calls if len(looked) < turns[number] else [],
            usage_metadata=usage if reports else None,
        )

    @tool
    @effect("read")
    def look(number: int) -> str:
        """Look."""
        return str(number)

    return create_agent(Model(respond=respond), [look])


def ask(agent, n_particles, **settings):
    return asyncio.run(amc(agent, n_particles=n_particles, **settings).arun({"messages": [("user", "Go.")]}))


def test_by_tokens_the_cheapest_wins():
    # Run 0 spends 4 x 15 tokens, run 1 2 x 115, and run 2 215 in its first request.
    found = ask(chat([3, 1, 9]), 3, race=Race(by="tokens"))
    assert (found.best.answer, found.stopped_by) == ("0", "race")
    assert found.usage["policy"].calls < 4 + 2 + 3


def test_by_tokens_usage_must_be_reported():
    with pytest.raises(AgentContractError, match='a race by="tokens" needs the usage of every request'):
        ask(chat([1, 1], reports=False), 2, race=Race(by="tokens"))


@pytest.mark.parametrize("budget", [True, False])
def test_a_cancelled_request_counts_what_was_reserved_for_it(budget):
    budget = Budget(tokens=1_000_000) if budget else None
    found = ask(chat([2, 0]), 2, race=Race(), budget=budget)
    used = found.usage["policy"]
    assert (found.best.answer, used.calls, used.estimated, used.missing) == ("0", 4, bool(budget), not budget)
    if budget is None:
        assert used.tokens == 3 * 15
        assert "1 without reported usage (their tokens are unknown)" in repr(found)
    else:
        assert used.tokens == budget.spent["tokens"] > 3 * 15 + 50
        assert used.output_tokens == 3 * 5 + 50
        assert "1 cancelled (estimated: tokens reserved for them)" in repr(found)


def test_a_race_stops_before_the_door(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    numbers = count()

    def respond(messages):
        looked = results(messages, "look")
        number = int(looked[0].content[-1]) if looked else next(numbers)
        if results(messages, "refund"):
            return f"done {number}"
        if len(looked) < [3, 1, 2][number]:
            return AIMessage("", tool_calls=[call("look", f"look-{number}-{len(looked)}", item=number)])
        return AIMessage("", tool_calls=[call("refund", f"refund-{number}", amount=number)])

    agent = plain_loop(respond, shop_tools(ledger).values())
    found = amc(agent, n_particles=3, tools=EFFECTS, race=Race(by="steps"), seed=1).run(start())
    assert (ledger.rows("refund"), found.stopped_by) == ([{"amount": 1}], "race")
    assert [commit.args for commit in found.commits] == [{"amount": 1}]
    assert found.best.answer == "done 1"
    # An unaccepted particle does not act: the only call is that of one that the function accepts before the door.
    numbers = count()
    race = Race(accept=lambda trajectory: refunds_in(trajectory) == [2] or trajectory.answer == "done 2")
    amc(agent, n_particles=3, tools=EFFECTS, race=race, seed=1).run(start())
    assert ledger.rows("refund")[1:] == [{"amount": 2}]


def test_a_race_goes_on_after_a_crash():
    runner = Runner([9, 4, 3, 9])
    graph = amc(
        runner.graph(), n_particles=4, step_after="act", stateless_tools=True, checkpointer=InMemorySaver(),
        critic=Judge([0.9, 0.9, 0.1, 0.9]), race=Race(by="steps", stop=EarlyStop(at_step=1, below=0.5)),
        settings=AmcSettings(durable_every=1),
    )  # fmt: skip
    thread = {"configurable": {"thread_id": "race"}}

    async def crash_and_go_on():
        first = asyncio.create_task(graph.ainvoke(GIVEN, thread))
        runner.watch = lambda: first.cancel() if runner.steps > 8 and not first.cancelled() else None
        with pytest.raises(asyncio.CancelledError):
            await first
        runner.watch = lambda: None
        return await graph.arun(None, thread)

    found = asyncio.run(crash_and_go_on())
    # Of run 2, the early stop was recorded; run 1 has four steps, and the others cannot have fewer.
    assert (found.best_output["number"], found.stopped_by) == (1, "race")
    assert [trajectory.done for trajectory in found.population.trajectories] == [False, True, False, False]


def test_a_settled_stream_has_the_winners_messages_once_the_others_are_out():
    graph = amc(
        chat([2, 9, 9]), n_particles=3, critic=lambda runs: [float(run.steps[0].observation == "0") for run in runs],
        race=Race(stop=EarlyStop(at_step=1, below=0.5)), settings=AmcSettings(emit="settled"),
    )  # fmt: skip
    streamed = [message.content for message, _ in graph.stream({"messages": ["Go."]}, stream_mode="messages")]
    assert streamed == ["0"] * 5  # Three answers of the model and two of the tool, each once.


def test_the_estimate_of_a_race_is_an_upper_bound():
    graph = amc(chat([1, 1]), n_particles=4, race=Race(finish=2, by="steps"))
    estimate = graph.estimate({"messages": [("user", "Go.")]})
    assert estimate.usage["policy"].calls == 8
    assert "at most about 120 tokens" in str(estimate)
