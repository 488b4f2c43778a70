from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage

import amc_agents.prices
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError
from amc_agents.population.wrap import amc
from amc_agents.prices import Cost, Price, cost, cost_of, dollars_of
from amc_agents.usage import Usage
from tests.population.worlds import digits, number_agent, start, sum_world

PRICE = Price(input=2.0, output=8.0, cached_input=0.5)


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(amc_agents.prices, "find_spec", lambda name: None)


def test_each_kind_of_token_is_paid_at_its_own_rate():
    usage = Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000)
    assert dollars_of(usage, PRICE) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.5 * 8.0)
    assert dollars_of(usage, Price(2.0, 8.0)) == pytest.approx(2.0 + 4.0), (
        "without a cached rate, cached tokens are input"
    )
    assert dollars_of(usage, Price(0, 0)) == 0.0
    assert dollars_of(Usage(1, 1_000_000, 0, 3_000_000), PRICE) == 0.5, "no more is cached than was read"


@pytest.mark.parametrize("wrong", [{"input": -1}, {"output": float("nan")}, {"cached_input": float("inf")}])
def test_an_invalid_price_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Price(**{"input": 1.0, "output": 1.0, **wrong})


def test_dollars_are_added_up_by_role():
    used = {
        "policy": {"openai:small": Usage(10, 1_000_000, 0), "openai:large": Usage(1, 0, 1_000_000)},
        "critic": {"value": Usage(5, 1_000_000)},
    }
    bill = cost(used, {"openai:small": Price(1, 1), "large": Price(9, 30), "value": Price(0.25, 0)})
    assert bill.dollars == pytest.approx({"policy": 31.0, "critic": 0.25})
    assert bill.total == pytest.approx(31.25)
    assert not bill.is_lower_bound
    assert str(bill) == "$31.2500"


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("openai:gpt-4o", "openai:gpt-4o"),
        ("openai:gpt-4o", "gpt-4o"),
        ("openai:gpt-4o-2024-08-06", "gpt-4o"),
        ("anthropic:claude-sonnet-4-5-20250929", "anthropic:claude-sonnet-4-5"),
        ("my-org/value", "my-org/value"),
        ("llama3:8b", "llama3:8b"),
    ],
)
def test_the_table_knows_a_model_by_its_names(model, key):
    assert cost({"policy": {model: Usage(1, 1_000_000)}}, {key: Price(7, 0)}).total == pytest.approx(7.0)


def test_a_more_exact_name_goes_first():
    prices = {"gpt-4o": Price(1, 1), "gpt-4o-2024-08-06": Price(2, 2), "openai:gpt-4o-2024-08-06": Price(3, 3)}
    assert cost({"policy": {"openai:gpt-4o-2024-08-06": Usage(1, 1_000_000)}}, prices).total == pytest.approx(3.0)
    assert cost({"policy": {"gpt-4o-2024-08-06": Usage(1, 1_000_000)}}, prices).total == pytest.approx(2.0)


@pytest.mark.usefixtures("without_library")
def test_a_model_without_a_price_makes_the_total_a_lower_bound():
    used = {
        "policy": {"openai:gpt-4o": Usage(1, 1000)},
        "critic": {"": Usage(1, 10)},
        "other": {"v": Usage(1, 500_000)},
    }
    bill = cost(used, {"v": PRICE})
    assert bill.unpriced == ("", "openai:gpt-4o")
    assert bill.dollars == pytest.approx({"policy": 0.0, "critic": 0.0, "other": 1.0})
    assert bill.is_lower_bound
    assert str(bill).startswith("at least $1.0000 (no price for an unnamed model, openai:gpt-4o)")
    assert "pip install 'amc-agents[prices]'" in str(bill)


@pytest.mark.usefixtures("without_library")
def test_the_library_is_not_used_for_a_self_hosted_server():
    bill = cost({"critic": {"value": Usage(1, 1000)}})
    assert "pip install" not in str(bill)
    assert "[prices]" in str(bill)


def test_requests_without_usage_make_the_total_a_lower_bound():
    bill = cost({"policy": {"v": Usage(3, 500_000, missing=2)}}, {"v": PRICE})
    assert bill.total == pytest.approx(1.0)
    assert (bill.missing, bill.unpriced) == (2, ())
    assert bill.is_lower_bound
    assert str(bill) == "at least $1.0000 (2 requests without reported usage)"


def test_usage_without_tokens_needs_no_price():
    assert cost({"critic": {"uniform": Usage(calls=5)}}) == Cost({"critic": 0.0})


def test_a_run_can_be_priced():
    def respond(messages):
        usage = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
        metadata = {"model_name": "m", "model_provider": "p"}
        return AIMessage(digits(messages), usage_metadata=usage, response_metadata=metadata)

    run = amc(number_agent(respond), environment=sum_world, n_particles=2).run(start())
    assert run.usage_by_model == {"policy": {"p:m": Usage(8, 8000, 800)}}
    assert cost_of(run, {"m": PRICE}).total == pytest.approx((8000 * 2.0 + 800 * 8.0) / 1e6)


def test_the_table_of_a_configuration_file_will_do(tmp_path):
    file = tmp_path / "amc.toml"
    file.write_text('[prices."org/value"]\ninput = 0.5\noutput = 0.0\n')
    assert cost({"critic": {"org/value": Usage(1, 1_000_000)}}, Config.load(file).prices).total == pytest.approx(0.5)


class TestTheLibrary:
    """With genai-prices as it is: what its prices are is its business, how they are asked for is ours."""

    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("genai_prices")

    def dollars(self, usage, model="openai:gpt-4o"):
        bill = cost({"policy": {model: usage}})
        assert bill.unpriced == ()
        return bill.total

    def test_a_known_model_has_its_list_price(self):
        from genai_prices import Usage as Tokens  # type: ignore[import-not-found]
        from genai_prices import calc_price

        listed = calc_price(
            Tokens(input_tokens=3000, output_tokens=200, cache_read_tokens=1000), "gpt-4o", provider_id="openai"
        )
        assert self.dollars(Usage(3, 3000, 200, 1000)) == pytest.approx(float(listed.total_price), rel=1e-9)
        assert self.dollars(Usage(3, 3000, 200, 1000)) < self.dollars(Usage(3, 3000, 200))

    def test_many_short_requests_are_not_priced_as_a_long_request(self):
        model = "google_genai:gemini-2.5-pro"
        short, long = self.dollars(Usage(100, 1_000_000), model), self.dollars(Usage(1, 1_000_000), model)
        assert short < long
        assert self.dollars(Usage(110, 1_000_000, missing=10), model) == pytest.approx(short)

    def test_the_users_table_has_precedence(self):
        bill = cost({"policy": {"openai:gpt-4o-2024-08-06": Usage(1, 1_000_000)}}, {"gpt-4o": Price(7, 7)})
        assert bill.total == pytest.approx(7.0)

    @pytest.mark.parametrize("model", ["openai:my-own", "nobody:gpt-4o", "gpt-4o", "amc_agents:crafting"])
    def test_models_unknown_to_the_library_are_unpriced(self, model):
        bill = cost({"policy": {model: Usage(1, 1000)}})
        assert bill.unpriced == (model,)
        assert "pip install" not in str(bill)
