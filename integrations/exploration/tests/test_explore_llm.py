from __future__ import annotations

import pytest
from pydantic import Field

from amc_agents.bench.results_folder import read_results
from amc_agents.envs.registry import world
from amc_agents.errors import ConfigurationError, RoleError
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents_exploration.comparison import llm_agents as explore_llm
from amc_agents_exploration.comparison.agents import explorers
from amc_agents_exploration.comparison.running import Exploration, explore
from amc_agents_exploration.comparison.trials import Trial
from amc_agents_exploration.testing import exact_roles_model


class Tempered(ScriptedChatModel):
    """Says at which temperature it was asked what."""

    temperature: float | None = 0.7
    asked: list = Field(default_factory=list)

    def _result(self, messages):
        self.asked.append((self.temperature, messages[-1].text))
        return super()._result(messages)


@pytest.fixture
def model(monkeypatch):
    """Lets `own:model` answer by a function; returns what it was asked."""

    def answering(respond):
        made = Tempered(respond=respond)
        explore_llm._chat_model.cache_clear()
        monkeypatch.setattr(explore_llm, "build_model", lambda name, **options: made)
        return made.asked

    yield answering
    explore_llm._chat_model.cache_clear()


def exact_roles(name):
    """What a model says that plays every role in a world's first instance exactly."""
    return exact_roles_model(next(iter(world(name).tasks(1, "test", 0)))).respond


def played(tmp_path, *agents, where="bandit", n_trials=2, n_episodes=5, temperatures=()):
    return explore(Exploration(where, explorers(agents, temperatures), n_trials, n_episodes), tmp_path)


@pytest.mark.parametrize("where", ["bandit", "combination-lock", "riverswim"])
def test_exact_roles_are_classic_psrl(tmp_path, where):
    trials = played(tmp_path, "psrl:exact", "classic-psrl", where=where)
    assert [trial.choices for trial in trials[:2]] == [trial.choices for trial in trials[2:]]
    assert all(trial.usage.calls == 0 for trial in trials)


def test_exact_estimates_are_classic_ids(tmp_path):
    trials = played(tmp_path, "ids:exact", "classic-ids", where="informative-bandit")
    assert [trial.choices for trial in trials[:2]] == [trial.choices for trial in trials[2:]]


def test_a_model_plays_all_roles_and_is_counted(tmp_path, model):
    asked = model(exact_roles("riverswim"))
    planned = Exploration("riverswim", explorers(["psrl:own:model?temperature=0.2"], [1.5]), 1, 2)
    (trial,) = explore(planned, tmp_path)
    assert trial.agent == "psrl:own:model?temperature=0.2, temperature 1.5"
    assert trial.usage.calls == len(asked) == 2 * (1 + 6 + 1)
    sampled = [temperature for temperature, prompt in asked if "Draw one sample" in prompt]
    assert sampled == [1.5, 1.5]
    assert sorted({temperature for temperature, _ in asked}) == [0.2, 1.5]
    assert read_results(tmp_path, Trial.from_json) == [trial]


def test_the_policy_is_asked_once_for_a_cave(tmp_path, model):
    asked = model(exact_roles("riverswim"))
    planned = Exploration("riverswim", explorers(["psrl:own:model?exact=sampler,updater&cache=cave"]), 1, 4)
    (trial,) = explore(planned, tmp_path)
    assert 4 <= len(asked) <= 4 * 3 < 4 * 6
    assert all(len(episode) == 6 for episode in trial.choices)


def test_ids_asks_twice_for_each_action(tmp_path, model):
    asked = model(exact_roles("informative-bandit"))
    planned = Exploration("informative-bandit", explorers(["ids:own:model?exact=updater"]), 1, 3)
    (trial,) = explore(planned, tmp_path)
    assert trial.choices[0] == (0,)
    assert trial.regrets[1:] == pytest.approx((0, 0))
    # The second and the third episode have the same posterior.
    assert len(asked) == 2 * 2 * 11


def baseline(messages):
    prompt = messages[-1].text
    for mark, answer in (("Advice:", "try B"), ("Reward:", "1"), ("Observation:", "You are in cave 1.")):
        if mark in prompt.rpartition("\n")[2]:
            return f"{mark} {answer}"
    return "Action: B"


@pytest.mark.parametrize(
    ("agent", "n_calls"),
    [
        ("reflexion:own:model", 2 * (6 + 1)),
        ("icrl:own:model?keep=0.5", 2 * 6),
        # Nothing has been seen at the first step; then two actions are rolled out to the end, three models asked.
        ("icpi:own:model", sum(2 * (3 * left - 1) for left in (5, 4, 3, 2, 1, 6, 5, 4, 3, 2, 1))),
    ],
)
def test_the_baselines(tmp_path, model, agent, n_calls):
    asked = model(baseline)
    (trial,) = played(tmp_path, agent, where="riverswim", n_trials=1, n_episodes=2, temperatures=[1.2])
    assert trial.usage.calls == len(asked) == n_calls
    assert {temperature for temperature, prompt in asked if "Action: <" in prompt} == {1.2}
    assert {temperature for temperature, prompt in asked if "Action: <" not in prompt} <= {0.7}


def test_a_prior_from_a_file(tmp_path, model):
    asked = model(lambda messages: "Hypothesis: nothing\nAction: 1\nPosterior: still nothing")
    (tmp_path / "prior.txt").write_text("Nobody knows the code.")
    agent = f"psrl:own:model?prior={tmp_path / 'prior.txt'}"
    with pytest.raises(RoleError):
        played(tmp_path / "out", agent, where="combination-lock", n_trials=1)
    assert "Nobody knows the code." in asked[0][1]


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("psrl:", "names no model: expected psrl:provider:model"),
        ("icrl:exact", "names no model"),
        ("psrl:own:model?keep=1", "has no option 'keep'"),
        ("psrl:own:model?exact=reader", "no role 'reader'; it has sampler, policy, updater"),
        ("psrl:own:model?temperature=warm", "temperature must be a number from 0 up, got 'warm'"),
        ("psrl:own:model?cache=cave", "a river"),
        ("psrl:own:model?prior=nowhere.txt", "'nowhere.txt' cannot be read"),
        ("psrl:own:model?key_env=AMC_NO_SUCH_KEY", "AMC_NO_SUCH_KEY"),
        ("icrl:own:model?keep=2", "0 to 1"),
    ],
)
def test_invalid_options_are_refused_at_once(model, agent, sentence):
    model(baseline)
    with pytest.raises(ConfigurationError, match=sentence):
        Exploration("bandit", explorers([agent]), 1, 1)


def test_a_model_that_cannot_be_created_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="could not be created"):
        Exploration("bandit", explorers(["psrl:nobody:model"]), 1, 1)


@pytest.mark.parametrize("agent", ["ids:own:model", "psrl:exact", "psrl:own:model?exact=sampler"])
def test_without_a_sampler_there_is_no_temperature(agent):
    with pytest.raises(ConfigurationError, match="accepts a temperature"):
        explorers([agent], [0.5])
