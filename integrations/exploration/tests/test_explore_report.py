from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from rich.console import Console

from amc_agents.errors import ConfigurationError
from amc_agents.usage import Usage
from amc_agents_exploration.command import table
from amc_agents_exploration.comparison.agents import Explorer, explorers
from amc_agents_exploration.comparison.measures import curve, minimum_frequencies, regrets, suffix_failures
from amc_agents_exploration.comparison.plots import regret_curves, surrogates, temperature_sweep
from amc_agents_exploration.comparison.report import markdown, summarise
from amc_agents_exploration.comparison.running import Exploration, explore
from amc_agents_exploration.comparison.trials import Trial


@pytest.mark.thorough
@given(st.lists(st.lists(st.sampled_from([0.0, 0.2]), min_size=7, max_size=7), min_size=1, max_size=4))
def test_suffix_failures_are_those_of_the_definition(rows):
    found = suffix_failures(np.array(rows))
    assert found.tolist() == [[float(all(one > 0 for one in row[t:])) for t in range(7)] for row in rows]


@given(st.lists(st.lists(st.integers(-1, 2), min_size=1, max_size=3), min_size=1, max_size=6))
def test_the_minimum_frequency_is_that_of_the_definition(episodes):
    found = minimum_frequencies(episodes, 3)
    for k in range(len(episodes)):
        steps = [number for episode in episodes[: k + 1] for number in episode]
        assert found[k] == pytest.approx(3 * min(steps.count(action) for action in range(3)) / len(steps))
        assert 0 <= found[k] <= 1


@pytest.fixture(scope="module")
def at_random(tmp_path_factory):
    planned = Exploration("bandit", explorers(["random"]), 200, 12, seed=1)
    return explore(planned, tmp_path_factory.mktemp("random"))


def test_the_random_agent_has_the_statistics_of_chance(at_random):
    results = summarise(at_random, [Explorer("random")], {"world": "bandit", "n_episodes": 12})
    (one,) = results.explorers
    assert one.episode_regret.mean == pytest.approx(np.full(12, 0.16), abs=4 * 0.08 / 200**0.5)
    assert one.cumulative_regret.mean == pytest.approx(np.cumsum(one.episode_regret.mean))
    chances = 0.8 ** np.arange(12, 0, -1)
    errors = np.sqrt(chances * (1 - chances) / 200)
    assert (np.abs(np.array(one.suffix_failure.mean) - chances) < 4 * errors).all()
    assert one.total_regret.mean == pytest.approx(one.cumulative_regret.mean[-1])
    assert one.total_regret.standard_error == pytest.approx(0.08 * 12**0.5 / 200**0.5, rel=0.2)
    assert abs(one.early_regret.mean - one.late_regret.mean) < 4 * 2**0.5 * 0.08 / 600**0.5


def trial(agent, number, per_episode, choices=None, usage=Usage()):  # noqa: B008
    episodes = choices or tuple((int(one > 0),) for one in per_episode)
    return Trial(
        agent, f"bandit/test/{number}", 0, tuple(per_episode), (0.0,) * len(per_episode), episodes, 2, usage, 0.1
    )


@pytest.fixture
def results():
    """`better` loses .2 in the first of 8 episodes, `worse` in the first 5 and, in one of two trials, in all."""
    always = [0.2] * 8
    learnt = [*[0.2] * 5, 0.0, 0.0, 0.0]
    trials = [trial("better", number, [0.2, *[0.0] * 7]) for number in (0, 1)]
    trials += [trial("worse", 0, learnt), trial("worse", 1, always, ((-1,),) * 8)]
    return summarise(
        trials, [Explorer("better"), Explorer("worse")], {"world": "bandit", "n_episodes": 8}, command="amc explore"
    )


def test_scores_and_paired_differences(results):
    better, worse = results.explorers
    assert better.total_regret.mean == pytest.approx(0.2)
    assert worse.total_regret.mean == pytest.approx(1.3)
    assert worse.total_regret.standard_error == pytest.approx(0.3)
    assert (better.early_regret.mean, worse.late_regret.mean) == pytest.approx((0.1, 0.1))
    assert worse.suffix_failure.mean == (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    assert better.suffix_failure.mean == (0.0,) * 8
    assert worse.minimum_frequency.mean[-1] == pytest.approx(0.5 * 2 * 3 / 8)
    assert worse.lost_turns == 0.5
    (difference,) = results.differences
    assert (difference.a, difference.b) == ("worse", "better")
    assert difference.total_regret.difference == pytest.approx(1.1)
    assert difference.total_regret.tasks == 2


def test_json_markdown_and_table(results, tmp_path):
    kept = json.loads(results.save(tmp_path / "exploration.json").read_text())
    assert kept["explorers"][1]["total_regret"] == {
        "mean": pytest.approx(1.3), "standard_error": pytest.approx(0.3), "tasks": 2, "seeds": 1,
    }  # fmt: skip
    assert kept["explorers"][0]["cumulative_regret"]["mean"] == pytest.approx([0.2] * 8)
    assert kept["command"] == "amc explore"
    told = markdown(results)
    assert "| worse | 1.300 ± 0.300 | 0.200 ± 0.000 | 0.100 ± 0.100 | 0.500 | 0.375 | 0.500 |" in told
    # Student's t of one degree of freedom: 1.1 ± 12.706 x 0.3.
    assert "| worse - better | +1.100 | -2.712 to +4.912 |" in told
    assert "2 trial(s)" in told
    console = Console(width=80, record=True)
    console.print(table(results, "Exploration"))
    shown = console.export_text()
    assert "±" in shown
    assert "0.375" in shown


def test_usage_of_language_models():
    used = [trial("one", number, [0.2, 0.0], usage=Usage(3, 10 * number, 5)) for number in (0, 1)]
    results = summarise(used, [Explorer("one")], {"world": "bandit", "n_episodes": 2})
    assert (results.explorers[0].calls, results.explorers[0].tokens) == (3, 10)
    assert "| calls per trial | tokens per trial |" in markdown(results)
    assert "| 3 | 10 |" in markdown(results)


def test_a_single_trial_has_no_spread():
    results = summarise([trial("one", 0, [0.2, 0.0])], [Explorer("one")], {"world": "bandit", "n_episodes": 2})
    assert results.explorers[0].cumulative_regret.standard_error is None
    assert "| one | 0.200 | 0.200 | 0.000 |" in markdown(results)
    assert results.differences == ()


def test_no_trial_is_an_error():
    with pytest.raises(ConfigurationError, match="no trial to average over"):
        summarise([], [Explorer("one")], {"world": "bandit", "n_episodes": 2})
    with pytest.raises(ConfigurationError, match="no trial to average over"):
        curve(regrets([]))


@pytest.mark.thorough
def test_the_pictures(results, tmp_path):
    for draw in (regret_curves, surrogates):
        picture = imread(draw(results, tmp_path / "deep" / f"{draw.__name__}.png", title="Exploration"))
        assert picture.shape[0] == 520
        assert picture[..., :3].std() > 0.02
    assert temperature_sweep(results, tmp_path / "sweep.png") is None


def test_the_picture_of_a_sweep(tmp_path):
    swept = [Explorer("sampler", 0.5), Explorer("sampler", 1.0), Explorer("classic")]
    trials = [trial(one.name, number, [0.2, 0.1 * number]) for one in swept for number in (0, 1)]
    results = summarise(trials, swept, {"world": "bandit", "n_episodes": 2})
    assert imread(temperature_sweep(results, tmp_path / "sweep.png")).shape[0] == 520
    once = summarise(trials, swept[1:], {"world": "bandit", "n_episodes": 2})
    assert temperature_sweep(once, tmp_path / "none.png") is None
