"""Races: the first to finish is the answer, and the others stop at once."""

from __future__ import annotations

import asyncio
import operator
from itertools import count
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from amc_agents import Race, amc
from amc_agents.errors import ConfigurationError
from amc_agents.runtime.effects import effect
from amc_agents.smc import Never


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    number: int
    seen: Annotated[int, operator.add]


class Runner:
    """An agent whose first particle answers last: particle number n needs `lengths[n]` steps."""

    def __init__(self, lengths, *, answers=None, sleep=0.0):
        self.lengths, self.answers, self.sleep = lengths, answers or list(map(str, range(len(lengths)))), sleep
        self.numbers, self.steps = count(), 0

    def graph(self):
        @effect("read")
        async def act(state: State):
            number = state["number"] if state.get("number", -1) >= 0 else next(self.numbers)
            self.steps += 1
            await asyncio.sleep(self.sleep)
            seen = state["seen"] + 1
            if seen >= self.lengths[number]:
                said: list[AnyMessage] = [AIMessage(self.answers[number])]
            else:
                call = {"name": "look", "args": {"at": seen}, "id": f"{number}-{seen}"}
                said = [AIMessage("", tool_calls=[call]), ToolMessage("x" * 10, tool_call_id=call["id"])]
            return {"messages": said, "number": number, "seen": 1}

        def ends(state: State):
            return END if isinstance(state["messages"][-1], AIMessage) else "act"

        builder = StateGraph(State)
        builder.add_node("act", act)
        builder.add_edge(START, "act")
        builder.add_conditional_edges("act", ends, ["act", END])
        return builder.compile()


GIVEN = {"messages": [("user", "Go.")], "number": -1, "seen": 0}


def run(runner, *, sync=False, **settings):
    graph = amc(runner.graph(), n_particles=len(runner.lengths), step_after="act", stateless_tools=True, **settings)
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


def test_a_race_of_nobody_is_refused():
    with pytest.raises(ConfigurationError, match="finish must be at least 1, got 0"):
        Race(finish=0)


@pytest.mark.parametrize(("select", "best"), [("shortest", {1}), ("longest", {2}), ("vote", {0, 2})])
def test_selection_by_the_text_needs_no_critic(select, best):
    runner = Runner([2, 1, 3], answers=["yes", "no", "Yes "])
    assert run(runner, select=select, resample=Never()).best_output["number"] in best


def test_without_a_race_a_critic_is_needed():
    with pytest.raises(ConfigurationError, match="no critic is named"):
        run(Runner([1, 1]), resample=Never())
