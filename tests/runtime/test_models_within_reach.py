"""The models that an agent may call are known by name before any of them is called."""

import functools

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore

from amc_agents import Budget, amc, effect, text_agent
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import BudgetExhausted, UnboundedRequest
from amc_agents.lac import actor_critic_model
from amc_agents.prices import Price
from amc_agents.psrl import PosteriorSampling
from amc_agents.runtime.budget_keeper import bounded, known_bounds
from amc_agents.testing.scripted import ScriptedChatModel


class Named(ScriptedChatModel):
    """Remembers its calls."""

    model: str = "policy"
    max_tokens: int = 20
    calls: list = []  # noqa: RUF012 (pydantic copies it)

    def _result(self, messages):
        self.calls.append(1)
        return super()._result(messages)

    def _get_ls_params(self, stop=None, **kwargs):
        return {"ls_provider": "own", "ls_model_name": kwargs.get("model", self.model), "ls_max_tokens": 20}


def named(model, text="Action: go"):
    return Named(respond=lambda messages: text, model=model)


judge = named("judge")
"""A model in a module, used by functions."""


def judged(trajectories):
    return [float(judge.invoke("how good?").text) for _ in trajectories]


@tool
def summarise(text: str) -> str:
    """Summarise a text."""
    return judge.invoke(text).text


class Fallback(AgentMiddleware):
    """Answers by another model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def wrap_model_call(self, request, handler):
        return handler(request.override(model=self.model))


class Reader:
    """A critic that sends its requests itself."""

    charged_as = "server"

    async def values(self, trajectories):
        return [0.0] * len(trajectories)


class Proxy:
    """An object whose unknown attributes are somewhere else."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")


@tool
@effect("read")
def look() -> str:
    """Look around."""
    return "nothing"


def agent(model):
    return create_agent(model, [look])


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (create_agent(named("a"), []), {"own:a"}),
        (create_agent(named("a"), [summarise]), {"own:a", "own:judge"}),
        (create_agent(named("a"), [], middleware=[Fallback(named("b"))]), {"own:a", "own:b"}),
        (create_agent(named("a"), [], middleware=[SummarizationMiddleware(named("s"))]), {"own:a", "own:s"}),
        (text_agent(named("a")), {"own:a"}),
        (named("a").with_fallbacks([named("b")]), {"own:a", "own:b"}),
        (named("a").bind(model="other"), {"own:other"}),
        (actor_critic_model(named("a"), "uniform"), {"own:a"}),
        (functools.partial(judged, []), {"own:judge"}),
        (parse_critic(judged), {"own:judge"}),
        (parse_critic("embedded:crafting"), {"embedded:crafting"}),
        (parse_critic("vllm:http://localhost:1?model=org/value"), {"org/value"}),
        (parse_critic("vllm:http://localhost:1"), set()),
        (Reader(), {"server"}),
        ({"deep": [(Reader(),)]}, {"server"}),
        (amc(agent(named("a")), judged, n_particles=2), {"own:a", "own:judge"}),
    ],
)
def test_every_model_is_known(thing, names):
    assert {bound.model for bound in known_bounds([thing])} == names


def test_an_object_that_is_elsewhere_is_not_asked_for_its_attributes():
    assert known_bounds([Proxy()]) == set()


PRICES = {"policy": Price(1.0, 1.0)}


@pytest.mark.parametrize(("critic", "unpriced"), [(judged, "own:judge"), (Reader(), "server")])
def test_a_critic_without_a_price_is_an_error_before_the_first_call_of_the_policy(critic, unpriced):
    policy = named("policy")
    graph = amc(agent(policy), critic, n_particles=2,
                budget=Budget(dollars=1.0, prices=PRICES))  # fmt: skip
    with pytest.raises(UnboundedRequest, match=f"the model '{unpriced}' has no price"):
        graph.run({"messages": [("user", "go")]})
    assert policy.calls == []
    judge.calls.clear()


def test_prices_of_all_models_let_the_run_begin():
    graph = amc(agent(named("policy")), Reader(), n_particles=2,
                budget=Budget(dollars=1.0, prices={**PRICES, "server": Price(0, 0)}))  # fmt: skip
    with graph.run({"messages": [("user", "go")]}) as run:
        assert run.stopped_by is None


def test_without_a_limit_of_dollars_nothing_needs_a_price():
    graph = amc(agent(named("policy")), Reader(), n_particles=2, budget=Budget(calls=50))
    with graph.run({"messages": [("user", "go")]}) as run:
        assert run.stopped_by is None


def test_a_decision_with_a_world_model_without_a_price_calls_no_policy():
    policy, world = named("policy"), named("world")
    budget = Budget(dollars=1.0, prices=PRICES)
    model = actor_critic_model(policy, "uniform", world_model=world, budget=budget)
    with pytest.raises(UnboundedRequest, match="'own:world' has no price"):
        model.invoke("go")
    assert policy.calls == world.calls == []


def test_a_role_without_a_price_is_an_error_before_the_first_call_of_another():
    sampler, policy = named("sampler"), named("policy")
    budget = Budget(dollars=1.0, prices={"sampler": Price(0, 0)})
    middleware = PosteriorSampling(sampler, policy=policy, budget=budget, prior="Nothing is known.")
    agent = create_agent(named("unused"), [], middleware=[middleware], store=InMemoryStore())
    with pytest.raises(UnboundedRequest, match="'own:policy' has no price"):
        agent.invoke({"messages": [("user", "go")]})
    assert sampler.calls == policy.calls == []


@pytest.fixture
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize("method", ["amc", "lac"])
@pytest.mark.parametrize(
    ("critic", "tokens", "message"),
    [
        ("judge:openai:x?max_tokens=none", 10_000, "'openai:x' has no max_tokens"),
        ("judge:openai:x", 2000, r"may need 2,048 tokens, more than the whole budget \(2,000 tokens\)"),
        ("foa:openai:x?max_tokens=3000", 2500, "may need 3,000 tokens"),
    ],
)
def test_a_judge_that_can_never_be_afforded_is_an_error_before_the_first_call_of_the_policy(
    method, critic, tokens, message
):
    policy, budget = named("policy"), Budget(tokens=tokens)
    if method == "amc":
        graph = amc(agent(policy), critic, n_particles=2, budget=budget)
        with pytest.raises(UnboundedRequest, match=message):
            graph.run({"messages": [("user", "go")]})
    else:
        with pytest.raises(UnboundedRequest, match=message):
            actor_critic_model(policy, critic, budget=budget).invoke("go")
    assert policy.calls == []


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize(
    ("critic", "limit"),
    [
        ("judge:openai:x", 2048),
        ("foa:openai:x?max_tokens=100", 100),
        ("verdict:openai:x", 8),
        ("judge:openai:x?max_tokens=none", None),
    ],
)
def test_the_answers_of_a_judge_are_bounded_by_default(critic, limit):
    assert {bound.output_tokens for bound in known_bounds([parse_critic(critic)])} - {1} == {limit}
    assert {bound.output_tokens for bound in known_bounds([JudgeCritic("openai:x")])} - {1} == {2048}


def test_a_request_that_a_budget_refuses_is_raised_and_not_logged_as_well(caplog):
    with bounded(Budget(tokens=10)), pytest.raises(BudgetExhausted):
        named("policy").invoke("How good is this?")
    assert caplog.records == []
