"""The shipped bandit sampler: a model that is not scripted, in the sampler's role of LLM-PSRL."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.psrl.posterior.priors import Beta, Independent, impossible, read_hypothesis
from amc_agents.psrl.roles import HYPOTHESIS, SAMPLE, after
from amc_agents_exploration import BANDIT_SAMPLER
from amc_agents_exploration.comparison.agents import explorers
from amc_agents_exploration.comparison.running import Exploration, explore
from amc_agents_exploration.worlds import bandit_task

AGENT = "psrl:embedded:bandit-sampler?exact=policy,updater"
TASK = bandit_task(5, "shipped")
POSTERIORS = [
    ((1, 1), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((9, 4), (2, 5), (1, 2), (5, 5), (3, 3)),
    ((31, 22), (8, 9), (4, 6), (12, 13), (2, 4)),
]


def posterior_text(parameters):
    names = [f"mean of arm {arm}" for arm in TASK.payload.arms]
    return str(Independent({name: Beta(*pair) for name, pair in zip(names, parameters, strict=True)}))


def prompt(posterior):
    return SAMPLE.format(world=TASK.instruction, posterior=posterior)


def drawn(parameters, n, temperature):
    """`[n, arms]` what the model says of the means; fails where the role could not read it."""
    posterior = posterior_text(parameters)
    model = EmbeddedChatModel(model=str(BANDIT_SAMPLER), temperature=temperature)
    message = HumanMessage(prompt(posterior))
    asked = [model.generate([[message]], n=100, seed=seed).generations[0] for seed in range(n // 100)]
    answered_texts = [after(answer.text, HYPOTHESIS) for answers in asked for answer in answers]
    assert [impossible(posterior, text) for text in answered_texts] == [""] * n
    return np.array([list(read_hypothesis(text).values()) for text in answered_texts])


def best_arms(means):
    return np.bincount(means.argmax(axis=1), minlength=5) / len(means)


def thompson(parameters):
    return best_arms(np.random.default_rng(0).beta(*np.array(parameters).T, size=(100_000, 5)))


def test_it_reads_the_librarys_own_prompt():
    tokenizer = WordTokenizer.from_folder(BANDIT_SAMPLER)
    ids = tokenizer.encode_chat([("user", prompt(posterior_text(POSTERIORS[1])))])
    words = [tokenizer.token(number) for number in ids]
    assert len(ids) == 23
    assert words[2:5] == [f"mean of arm {TASK.payload.arms[0]}", ": Beta(9", ", 4)"]


@pytest.mark.thorough
@pytest.mark.parametrize("parameters", POSTERIORS)
def test_it_draws_from_the_posterior(parameters):
    means = drawn(parameters, 400, 1.0)
    exact = np.array(parameters)
    assert np.abs(means.mean(axis=0) - exact[:, 0] / exact.sum(axis=1)).max() < 0.06
    assert np.abs(best_arms(means) - thompson(parameters)).sum() / 2 < 0.1


def test_it_is_sharper_at_a_lower_temperature():
    spread = [drawn(POSTERIORS[1], 200, temperature).std(axis=0) for temperature in (0.5, 1.0)]
    assert (spread[0] < spread[1]).all()
    assert np.ptp(drawn(POSTERIORS[1], 100, 0.0), axis=0).max() == 0


@pytest.mark.thorough
def test_it_explores_a_bandit(tmp_path):
    trials = explore(Exploration("bandit", explorers([AGENT], [1.0]), n_trials=4, n_episodes=60), tmp_path / "a")
    again = explore(Exploration("bandit", explorers([AGENT], [1.0]), n_trials=4, n_episodes=60), tmp_path / "b")
    assert [trial.choices for trial in trials] == [trial.choices for trial in again]
    for trial in trials:
        assert trial.usage.calls == 60, "no answer had to be asked for again"
        pulls = np.bincount(np.ravel(trial.choices), minlength=5)
        assert pulls.min() > 0
    # All arms but one lose .2 a pull; at random 4 of 5 pulls lose.
    assert np.mean([sum(trial.regrets) for trial in trials]) < 0.16 * 60


def test_what_it_cannot_use_is_refused():
    for agent, told_cause in [
        ("psrl:embedded:bandid-sampler", "no model 'bandid-sampler'"),
        (f"{AGENT}&base_url=http://host", "leave out base_url"),
    ]:
        with pytest.raises(ConfigurationError, match=told_cause):
            Exploration("bandit", explorers([agent]), n_trials=1, n_episodes=1)
