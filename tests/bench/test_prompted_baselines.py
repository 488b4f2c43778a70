"""ReflAct, Self-Plan and Reflexion, with a chat model that follows the instructions of each."""

from itertools import count

import pytest
from langchain_core.messages import HumanMessage, SystemMessage

from amc_agents.bench.comparison import Comparison
from amc_agents.bench.methods import REFLECTING, Tuned, best_of_n, react, reflact, reflexion, self_plan, with_reflection
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.runner import compare, run_one
from amc_agents.bench.searches import instruction_with
from amc_agents.runtime.text_agent import text_agent
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task
from tests.bench.coins import LENGTH, BitWorld

TASK = Task("bits/0", "Say bits.")


def comparison_of(method, respond, **settings):
    calls = []

    def recorded(messages):
        calls.append(messages)
        return respond(messages)

    comparison = Comparison(
        policy=lambda temperature: ScriptedChatModel(respond=recorded),
        environment=BitWorld,
        tasks=[TASK],
        methods=[method],
        horizon=6,
        **settings,
    )
    return comparison, calls


async def played(method, respond, **settings):
    comparison, calls = comparison_of(method, respond, **settings)
    record, run = await run_one(comparison, 0, TASK, method)
    assert record.cost.policy_calls == len(calls), "every call is counted"
    return record, run, calls


@pytest.mark.parametrize("agent", [text_agent, plain_text_agent])
async def test_reflact_reflects_on_the_state_before_each_action(agent):
    record, run, calls = await played(reflact(), lambda _: "Reflection: Three are left.\nAction: 1", agent=agent)
    assert [type(message) for message in calls[0]] == [SystemMessage, HumanMessage]
    assert calls[0][0].text == REFLECTING
    assert [(step.thought, step.action) for step in run.best.steps] == [("Three are left.", "1")] * LENGTH
    assert run.best.task.instruction == "Say bits."
    assert record.scores.deployable == 1.0


async def test_any_method_can_reflect():
    method = with_reflection(best_of_n())
    _, _, calls = await played(method, lambda _: "Reflection: None.\nAction: 1", n_particles=3)
    assert len(calls) == 3 * LENGTH
    assert (method.name, method.label) == ("best-of-n-reflact", "Best-of-N (ReflAct)")
    assert method.as_plain()["system"] == REFLECTING
    assert "system" not in react().as_plain()


async def test_self_plan_lets_the_policy_choose_among_its_own_turns():
    turns, asked = count(), []

    def respond(messages):
        if "Choice:" not in messages[-1].text:
            number = next(turns)
            return f"Thought: number {number}\nAction: {number % 2}"
        asked.append(messages[-1].text)
        good, bad = (asked[-1].rindex(f"Action: {bit}") for bit in (1, 0))
        return f"Choice: {1 if good < bad else 2}"

    method = self_plan(Tuned(k=2))
    record, _, calls = await played(method, respond)
    assert record.scores.oracle == 1.0
    assert len(asked) == LENGTH
    assert len(calls) == LENGTH * (2 + 1), "K turns and a choice at each step"
    assert method.as_plain()["planning"]["critique"] == "self"


async def test_reflexion_repeats_a_failed_task_with_its_reflections():
    def respond(messages):
        if "You have attempted a task and failed" in messages[0].text:
            assert "Action: 0\nObservation: end" in messages[0].text
            return "Say ones."
        return "Action: 1" if "- Say ones." in messages[0].text else "Action: 0"

    record, run, calls = await played(reflexion(trials=3), respond)
    assert [trial.return_ for trial in run.population.trajectories] == [0.0, 1.0]
    assert record.scores.oracle == 1.0
    assert record.scores.deployable is None, "it saw that the first trial failed"
    assert len(calls) == LENGTH + 1 + LENGTH
    assert all(trial.task == TASK for trial in run.population.trajectories)


async def test_reflexion_ends_after_its_trials_without_a_last_reflection():
    reflections = []

    def respond(messages):
        if "You have attempted" in messages[0].text:
            reflections.append(messages)
            return f"Reflection {len(reflections)}."
        return "Action: 0"

    _, run, calls = await played(reflexion(trials=3), respond)
    assert len(run.population.trajectories) == 3
    assert len(reflections) == 2
    assert len(calls) == 3 * LENGTH + 2


def test_the_policy_reads_the_three_newest_reflections():
    text = instruction_with("Say bits.", [f"number {n}" for n in range(5)])
    assert text.endswith("Say bits.")
    assert [line for line in text.splitlines() if line.startswith("-")] == ["- number 2", "- number 3", "- number 4"]
    assert instruction_with("Say bits.", []) == "Say bits."


async def test_the_engine_stores_and_resumes_them(tmp_path):
    comparison, calls = comparison_of(reflexion(trials=2), lambda _: "Action: 1")
    records = await compare(comparison, tmp_path)
    assert await compare(comparison, tmp_path, resume=True) == records
    assert len(calls) == LENGTH
    assert comparison.method_settings["reflexion"]["trials"] == 2
