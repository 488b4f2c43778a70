"""Features of a user: `AmcSettings(features=[...])`."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents.errors import ConfigurationError, PopulationError
from amc_agents.population import AmcSettings, Feature
from amc_agents.population.feature import HOLD
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.worlds import TASK, EndsByNine, ReturnSoFar, number_agent, start, sum_world
from tests.variants import variants

HOOKS = """on_start on_step on_pause on_weighed on_resampled on_fork on_stopped on_end on_result on_close""".split()


class Log(Feature):
    """Notes which hooks were called, in their order."""

    def __init__(self, calls):
        self.calls = calls


def _logging(hook):
    unused = getattr(Feature, hook)

    def log(self, *args, **kwargs):
        self.calls.append(hook)
        return unused(self, *args, **kwargs)

    return log


for _hook in HOOKS:
    setattr(Log, _hook, _logging(_hook))


def graph(*features, agent=None, critic=None, **settings):
    given = {"environment": sum_world, "n_particles": 4, "resample": AtSteps(2), "beta": 1.0, "seed": 3, **settings}
    return amc(agent or number_agent(), critic or ReturnSoFar(), settings=AmcSettings(features=features), **given)


def test_hooks_are_called_in_the_order_of_algorithm_1():
    calls = []
    run = graph(partial(Log, calls)).run(start())
    run.close()
    order = [hook for number, hook in enumerate(calls) if number == 0 or hook != calls[number - 1]]
    weighed = ["on_step", "on_weighed"]
    resampled = ["on_fork", "on_resampled", "on_pause"]
    ended = ["on_pause", "on_stopped", "on_end", "on_result", "on_close"]
    assert order == ["on_start", *weighed, *resampled, *weighed, *ended]
    ancestors = run.history[0].ancestors
    assert Counter(calls)["on_fork"] == (ancestors != np.arange(4)).sum()
    assert Counter(calls)["on_step"] == 8, "each particle stops at the weighing point and at its end"


def test_a_feature_that_only_watches_changes_nothing():
    with graph().run(start()) as plain, graph(partial(Log, [])).run(start()) as watched:
        assert watched.log_evidence == plain.log_evidence
        assert [step.action for step in watched.best.steps] == [step.action for step in plain.best.steps]


class Lines(Feature):
    """Counts the forks in the line of each particle."""

    name = "lines"
    ended: ClassVar[list[int]] = []

    def on_fork(self, parent, child):
        child.states[Lines] = (parent.of(Lines) or 0) + 1

    async def on_end(self, system, run, winner):
        Lines.ended = [particle.of(Lines) or 0 for particle in system.particles]
        return run

    def record_of(self, particle):
        return particle.of(Lines) or 0

    def restore_of(self, particle, recorded):
        particle.states[Lines] = recorded


def depths(history, n_particles):
    """The forks in the line of each particle, from the run's ancestors."""
    lines = [0] * n_particles
    for point in history:
        if point.ancestors is not None:
            lines = [lines[source] + (source != slot) for slot, source in enumerate(point.ancestors.tolist())]
    return lines


def test_the_state_of_a_particle_follows_the_rule_of_its_feature_at_forks():
    with graph(Lines, resample=EveryStep(), n_particles=6).run(start()) as run:
        assert Lines.ended == depths(run.history, 6)
        assert max(Lines.ended) > 1


def test_a_durable_point_keeps_what_a_feature_knows():
    class Dies(ReturnSoFar):
        async def values(self, trajectories):
            if len(self.batches) == 2:
                self.batches.append("died")
                raise ConnectionError("the machine dies")
            return await super().values(trajectories)

    wrapped = graph(Lines, critic=Dies(), resample=EveryStep(), n_particles=6, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    with pytest.raises(Exception, match="the machine dies"):
        wrapped.run(start(), config)
    with wrapped.run(None, config) as run:
        assert Lines.ended == depths(run.history, 6)


class Agreement(Feature):
    def __init__(self, least):
        self.least, self.actions = least, Counter()

    def on_step(self, system, particle):
        if particle.succeeded:
            self.actions[system.runner.trajectory_of(particle).steps[-1].action] += 1

    def stops(self, system):
        return "agreement" if sum(self.actions.values()) >= self.least else None


def test_a_feature_ends_the_run_which_is_weighed_once_more_and_answers_by_a_finished_particle():
    ends_at_nine = lambda state: (EndsByNine(30), TASK)  # noqa: E731
    wrapped = graph(partial(Agreement, 2), environment=ends_at_nine, resample=Never(), n_particles=8)
    with wrapped.run(start()) as run:
        assert run.stopped_by == "agreement"
        assert np.isnan(run.log_evidence)
        assert run.best.done
        assert sum(not trajectory.done for trajectory in run.population.trajectories) > 0
        assert len(run.history) == 1


def test_a_run_that_is_stopped_before_any_particle_has_finished_says_so():
    class AtOnce(Feature):
        def stops(self, system):
            return "at once" if any(particle.steps for particle in system.particles) else None

    with pytest.raises(PopulationError, match=r"stopped \('at once'\) before any particle had finished"):
        graph(AtOnce).run(start())


def test_next_names_another_verb():
    class Again(Feature):
        """Weighs a second time before the first resampling."""

        async def next(self, system, then):
            return "weigh" if then == "resample" and len(system.history) == 1 else None

    with graph(Again).run(start()) as run:
        assert [point.step for point in run.history] == [2, 2, 4]
        assert run.history[0].ancestors is None


@variants("asynchronous", [True, False])
async def test_before_call_refuses_a_call_or_holds_it(asynchronous):
    paid = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    def respond(messages):
        if isinstance(messages[-1], ToolMessage):
            return messages[-1].text
        return AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": amounts.pop()}, "id": "1"}])

    class Guard(Feature):
        def before_call(self, particle, name, args):
            return "too much" if args["amount"] > 5 else HOLD

    class Largest:
        async def values(self, trajectories):
            return np.array([float("4" in trajectory.steps[-1].action) for trajectory in trajectories])

    amounts = [2, 9, 4]
    wrapped = amc(create_agent(ScriptedChatModel(respond=respond), [pay]), Largest(), n_particles=3, beta=0.1, seed=0,
                  stateless_tools=True, settings=AmcSettings(features=[Guard]))  # fmt: skip
    state = {"messages": [("user", "Pay.")]}
    run = await wrapped.arun(state) if asynchronous else wrapped.run(state)
    assert paid == [4], "one particle paid, and what was refused never ran"
    assert [commit.args for commit in run.commits] == [{"amount": 4}]
    assert run.best.steps[-1].action.endswith("paid 4")


def test_features_are_made_for_each_run():
    with pytest.raises(ConfigurationError, match=r"that make a Feature for each run, got .*give the class"):
        graph(Agreement(3))
