"""Comparisons whose policy is any chat model, which reads the world's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amc_agents.bench.methods import PROMPTED, Tuned, react, reflact, reflexion, tree_of_thoughts
from amc_agents.bench.plan import ComparisonPlan, policy_model, run_plan
from amc_agents.bench.run_files import failed_runs
from amc_agents.bench.selection import MethodChoice
from amc_agents.envs.registry import world
from amc_agents.errors import ConfigurationError
from tests.scripted_http import ScriptedServer, scripted_server

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def answer(request):
    message = {"role": "assistant", "content": "Thought: I look.\nAction: inventory"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return 200, {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE}


@pytest.fixture
def server(monkeypatch) -> Iterator[ScriptedServer]:
    with scripted_server({"POST /v1/chat/completions": answer}) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{running.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        yield running


def plan_of(*methods, world="crafting-stock", n_tasks=1, **settings):
    return ComparisonPlan(methods, n_tasks, world=world, model="openai:m", n_particles=3, **settings)


@pytest.mark.thorough
def test_a_chat_model_reads_the_rules_of_the_world_and_its_temperature_is_the_methods(server, tmp_path):
    methods = (react(Tuned(0.3)), reflact(), tree_of_thoughts(width=1, samples=1), reflexion(trials=1))
    results = run_plan(plan_of(*methods), tmp_path)
    assert {result.method for result in results} == {method.name for method in methods}
    assert all(result.scores.success == 0 for result in results)
    rules = world("crafting-stock").rules
    assert "Plan ahead" in rules
    for _, request, _ in server.asked:
        assert request["messages"][0]["role"] == "system"
        assert request["messages"][0]["content"].startswith(rules)
        assert request["messages"][1]["content"].startswith("Crafting commands:")
    assert {request["temperature"] for _, request, _ in server.asked} == {0.3, 1.0}
    assert any("Reflection:" in request["messages"][0]["content"] for _, request, _ in server.asked)


@pytest.mark.thorough
def test_the_methods_that_prompt_the_policy_are_chosen_by_name_with_react_s_temperature(server, tmp_path):
    choice = MethodChoice(("prompted",), {"react": Tuned(0.3)}, candidates=2)
    plan, notes = choice.applied_to(plan_of())
    assert ([method.name for method in plan.methods], notes) == (["reflact", "self-plan", "reflexion"], [])
    calls = {result.method: result.cost.policy_calls for result in run_plan(plan, tmp_path)}
    # 20 steps; Self-Plan samples two turns at each, which are alike here, so that there is nothing to choose; Reflexion
    # has three trials and two reflections.
    assert calls == {"reflact": 20, "self-plan": 2 * 20, "reflexion": 3 * 20 + 2}
    assert {request["temperature"] for _, request, _ in server.asked} == {0.3}


def test_without_names_no_method_prompts_the_policy():
    plan, _ = MethodChoice().applied_to(plan_of())
    assert not {method.name for method in plan.methods} & set(PROMPTED)


@pytest.mark.parametrize("names", [("react", "reflexion"), ("prompted",)])
def test_a_policy_that_was_trained_for_its_world_is_not_prompted(names):
    with pytest.raises(ConfigurationError, match="reflexion cannot run: the policy crafting was trained for its world"):
        MethodChoice(names).applied_to(ComparisonPlan((), 1))


@pytest.mark.thorough  # twenty requests of each of three runs; test_own_agent.py has a failure without a server
def test_a_request_that_fails_is_a_failure_in_the_table_and_the_others_go_on(server, tmp_path):
    calls = []

    def sometimes(request):
        calls.append(request)
        return (400, {"error": {"message": "too long", "type": "x"}}) if len(calls) == 1 else answer(request)

    with scripted_server({"POST /v1/chat/completions": sometimes}) as failing, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", f"{failing.url}/v1")
        plan = plan_of(react(), n_tasks=3)
        results = run_plan(plan, tmp_path, n_concurrent=1)
    assert len(results) == 2
    (failure,) = failed_runs(tmp_path, plan.comparison().items(), [result.key for result in results])
    assert "too long" in failure.error


def test_a_trained_policy_gets_no_rules_and_another_model_those_of_the_world():
    assert ComparisonPlan((), 1).rules == ""
    assert ComparisonPlan((), 1, model="openai:m").rules == world("crafting").rules
    (task,) = ComparisonPlan((), 1).tasks()
    assert ComparisonPlan((), 1).input_of(task) == {"messages": [("user", task.instruction)]}


def test_a_policy_that_cannot_be_used_is_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="the policy openai:m cannot be used: Missing credentials"):
        policy_model("openai:m", 1.0)
    with pytest.raises(ConfigurationError, match="the policy nowhere:m cannot be used"):
        policy_model("nowhere:m", 1.0)
