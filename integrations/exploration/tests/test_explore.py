from __future__ import annotations

import json

import explorers as own
import pytest

from amc_agents.bench.results_folder import read_results
from amc_agents.errors import AmcError, CheckpointError, ConfigurationError, DecisionError
from amc_agents_exploration.comparison.agents import Explorer, explorers
from amc_agents_exploration.comparison.running import Exploration, explore
from amc_agents_exploration.comparison.trials import LOST, Trial
from amc_agents_exploration.worlds import bandit_task

STUBBORN = "explorers:stubborn"


@pytest.fixture(autouse=True)
def afresh():
    yield
    own.made.clear()
    own.broken.clear()


def exploration(*agents, world="bandit", n_trials=4, n_episodes=6, temperatures=(), **settings):
    return Exploration(world, explorers(agents, temperatures), n_trials, n_episodes, **settings)


def untimed(trials):
    return [{**trial.to_json(), "seconds": 0} for trial in trials]


def test_every_explorer_meets_the_same_instances(tmp_path):
    trials = explore(exploration("classic-psrl", "random", first=3), tmp_path)
    tasks = [f"bandit/test/{number}" for number in (3, 4, 5, 6)]
    assert [(trial.agent, trial.task) for trial in trials] == [
        (agent, task) for agent in ("classic-psrl", "random") for task in tasks
    ]
    for trial in trials:
        means = bandit_task(int(trial.task.rsplit("/", 1)[1]), "test").payload.means
        pulled = [numbers[0] for numbers in trial.choices]
        assert trial.regrets == pytest.approx([max(means) - means[arm] for arm in pulled])
        assert set(trial.returns) <= {0.0, 1.0}
        assert trial.n_actions == 5
    assert len({trial.choices for trial in trials}) > 4


def test_classic_ids_buys_information_once(tmp_path):
    trials = explore(exploration("classic-ids", world="informative-bandit", n_trials=10), tmp_path)
    for trial in trials:
        assert trial.choices[0] == (0,)
        best = trial.choices[1][0]
        assert trial.regrets == pytest.approx([1 - 1 / (2 * best), *[0.0] * 5])


def test_the_bayes_optimal_agent_knows_how_many_episodes_there_are(tmp_path):
    one = explore(exploration("bayes-optimal", world="combination-lock", n_trials=6, n_episodes=2), tmp_path / "2")
    many = explore(exploration("bayes-optimal", world="combination-lock", n_trials=6, n_episodes=8), tmp_path / "8")
    assert [sum(trial.regrets) for trial in many] <= [5.0] * 6
    assert all(trial.regrets[-3:] == (0.0, 0.0, 0.0) for trial in many)
    assert [trial.choices for trial in one] != [trial.choices[:2] for trial in many]


def test_a_lost_turn_is_no_choice(tmp_path):
    (trial,) = explore(exploration("explorers:babbler", world="riverswim", n_trials=1), tmp_path)
    assert trial.choices == ((LOST,) * 6,) * 6
    assert trial.regrets == pytest.approx([1.3684] * 6, abs=1e-4)


def test_a_users_agent_at_several_temperatures(tmp_path):
    planned = exploration(STUBBORN, "random", temperatures=(0.5, 1.0))
    assert [one.name for one in planned.explorers] == [
        f"{STUBBORN}, temperature 0.5",
        f"{STUBBORN}, temperature 1",
        "random",
    ]
    own.made.clear()
    explore(planned, tmp_path)
    assert [temperature for _, _, temperature in own.made] == [0.5, 1.0] * 4
    seeds = {(task, seed) for task, seed, _ in own.made}
    assert len(seeds) == len({seed for _, seed in seeds}) == 4


def test_an_interrupted_exploration_goes_on(tmp_path):
    planned = exploration(STUBBORN, "classic-psrl")
    own.broken.add("bandit/test/2")
    with pytest.raises(DecisionError, match="no luck"):
        explore(planned, tmp_path / "cut", n_concurrent=1)
    kept = planned.kept(tmp_path / "cut")
    assert len(kept) < 6
    assert {trial.task for trial in kept if trial.agent == STUBBORN} == {"bandit/test/0", "bandit/test/1"}
    with (tmp_path / "cut" / "records.jsonl").open("a") as file:
        file.write('{"agent": "classic-psrl", "task": "ba')
    own.broken.clear()
    own.made.clear()
    told = []
    trials = explore(planned, tmp_path / "cut", resume=True, progress=told.append)
    assert [task for task, _, _ in own.made] == ["bandit/test/2", "bandit/test/3"]
    assert told == list(range(len(kept), 9))
    assert untimed(trials) == untimed(explore(planned, tmp_path / "whole"))
    more = explore(exploration(STUBBORN, "classic-psrl", n_trials=5), tmp_path / "cut", resume=True)
    assert len(more) == 10


def test_a_folder_is_of_one_kind_of_exploration(tmp_path, monkeypatch):
    planned = exploration("random", world="wordle")
    explore(planned, tmp_path)
    with pytest.raises(ConfigurationError, match="--resume"):
        explore(planned, tmp_path)
    with pytest.raises(ConfigurationError, match="n_episodes was 6, is 7"):
        explore(exploration("random", world="wordle", n_episodes=7), tmp_path, resume=True)
    (tmp_path / "words").write_text("lemon\ntiger\n")
    monkeypatch.setenv("AMC_WORDS", str(tmp_path / "words"))
    with pytest.raises(ConfigurationError, match="instances was"):
        explore(planned, tmp_path, resume=True)
    monkeypatch.delenv("AMC_WORDS")
    (tmp_path / "records.jsonl").write_text(json.dumps({"agent": "random"}) + "\n")
    with pytest.raises(CheckpointError, match="line 1, is not a record"):
        explore(planned, tmp_path, resume=True)


@pytest.mark.thorough
def test_two_processes_do_what_one_does(tmp_path):
    planned = exploration("classic-psrl", "explorers:failing", world="riverswim", n_trials=3)
    well = exploration("classic-psrl", world="riverswim", n_trials=3)
    with pytest.raises(AmcError, match="a worker failed, and what was finished is kept: DecisionError: no luck"):
        explore(planned, tmp_path / "two", n_workers=2)
    trials = explore(well, tmp_path / "two", resume=True)
    assert len(read_results(tmp_path / "two", Trial.from_json)) == 3
    assert untimed(trials) == untimed(explore(well, tmp_path / "one"))


@pytest.mark.parametrize(
    ("world", "agents", "temperatures", "sentence"),
    [
        ("bandit", ["psrl2"], (), "no agent 'psrl2'; choose from: classic-psrl, classic-ids, bayes-optimal, random"),
        ("bandit", ["nowhere:agent"], (), "nowhere"),
        ("bandit", ["explorers:missing"], (), "has no function 'missing'"),
        (
            "bandit",
            ["explorers:nobody"],
            (),
            "returned a object without begin, act, observe, end",
        ),
        ("bandit", ["random", "random"], (), "each once"),
        ("bandit", [], (), "got none"),
        ("bandit", ["random"], (0.5,), "accepts a temperature"),
        ("bandit", ["bayes-optimal"], (), "plays only the combination lock"),
        ("riverswim", ["classic-ids"], (), "exact regret and information"),
        ("crafting", ["random"], (), "no hidden instances"),
    ],
)
def test_invalid_explorations_are_refused_at_once(world, agents, temperatures, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        exploration(*agents, world=world, temperatures=temperatures)


@pytest.mark.parametrize("size", [{"n_trials": 0}, {"n_episodes": 0}])
def test_an_exploration_needs_trials_and_episodes(size):
    with pytest.raises(ConfigurationError, match="1 trial and 1 episode or more"):
        exploration("random", **size)


def test_an_explorer_is_plain_data():
    assert Explorer("random").name == "random"
    assert exploration("random").explorer_settings == {"random": {"agent": "random", "temperature": None}}
