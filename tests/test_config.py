from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from amc_agents import AmcSettings, amc
from amc_agents.config import Config, configured
from amc_agents.errors import ConfigurationError
from amc_agents.population.settings import Settings
from amc_agents.prices import Price
from amc_agents.settings import schedule_of, table
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from tests.population.worlds import ReturnSoFar, number_agent, sum_world


@pytest.fixture
def load(tmp_path):
    def from_text(text):
        path = tmp_path / "amc.toml"
        path.write_text(text)
        return Config.load(path)

    return from_text


def page(repository):
    return (repository / "docs" / "configuration.md").read_text()


def test_the_example_of_the_page_loads(repository, load):
    text = re.search(r"^```toml\n(.*?)^```", page(repository), re.DOTALL | re.MULTILINE)[1]
    config = load(text)
    plain = tomllib.loads(text)
    assert config.model_dump(exclude_none=True) == plain
    settings = Settings.chosen(config, {})
    assert (settings.n_particles, settings.resample, settings.beta) == (15, AtSteps(4, 8), 0.1)
    assert settings.on_critic_error == "uniform"
    assert config.price_list() == {"policy": Price(0.10, 0.40, 0.02)}


def test_the_page_has_every_key_and_no_other(repository):
    listed = re.findall(r"^\| `(\[?\w+)", page(repository), re.MULTILINE)
    table = [name for name in listed if name != "graph"]
    amc = list(type(Config().amc).model_fields)
    tables = ["[amc", "[policy", "[embeddings", "[prices"]
    assert sorted(table) == sorted([*amc, *tables, "critic", "on_critic_error"])


def test_the_page_has_the_meanings_and_the_defaults(repository):
    assert table() in page(repository), f"docs/configuration.md needs these rows:\n{table()}"


def test_the_bounds_of_the_ranges_are_allowed(load):
    bounds = {"n_particles": 1, "horizon": 1, "quorum": 1, "seed": 0}
    text = "\n".join(f"{name} = {value}" for name, value in bounds.items())
    assert load(f"[amc]\n{text}").amc.model_dump(exclude_none=True) == bounds


def test_the_help_of_amc_lists_the_defaults():
    assert "Defaults: n_particles=15, resample=AtSteps(2, 4, 8, 16, 32)," in str(amc.__doc__)
    assert "scheme='systematic', beta='auto'," in str(amc.__doc__)


def test_an_empty_file_has_no_settings(load):
    assert load("").model_dump() == Config().model_dump()
    assert Settings.chosen(load(""), {"beta": None}) == Settings()


SIZE = 'expected a whole number, or "start..most" such as "4..32"'
SECRET = "sk-do-not-show"


@pytest.mark.parametrize(
    ("plain", "schedule"),
    [
        ("{at_steps = [8, 4]}", AtSteps(4, 8)),
        ("{ess_below = 0.5}", EssBelow(0.5)),
        ("{ess_below = 1}", EssBelow(1)),
        ('"every_step"', EveryStep()),
        ('"never"', Never()),
    ],
)
def test_schedules(load, plain, schedule):
    assert schedule_of(load(f"[amc]\nresample = {plain}").amc.resample) == schedule


def test_code_has_precedence_over_the_file_and_the_file_over_the_defaults(load):
    config = load('[amc]\nbeta = 0.5\nn_particles = 4\nresample = "never"')
    settings = Settings.chosen(config, {"beta": 2.0, "n_particles": None, "resample": None})
    assert (settings.beta, settings.n_particles, settings.resample, settings.horizon) == (2.0, 4, Never(), 50)


def test_an_argument_precedes_the_settings_object_and_that_the_file(load):
    config = load('[amc]\nfinished = "keep"\nhorizon = 7\nquorum = 1\nemit = "settled"')
    settings = Settings.chosen(config, {"horizon": 9}, AmcSettings(horizon=8, quorum=2, emit="end"))
    assert (settings.horizon, settings.quorum, settings.finished) == (9, 2, "keep")
    assert settings.emit == "settled", "a field that has its default is not given"


def test_amc_takes_its_other_settings_as_one_object():
    graph = amc(
        number_agent(), ReturnSoFar(), environment=sum_world, settings=AmcSettings(n_particles=2, scheme="residual")
    )
    assert graph.wrapped.settings.scheme == "residual"
    assert graph.wrapped.settings.n_particles == 2
    with pytest.raises(ConfigurationError, match=r"settings= takes an AmcSettings, such as .*, got \{"):
        amc(number_agent(), settings={"scheme": "residual"})  # type: ignore[arg-type]


def test_an_impossible_setting_of_the_file_names_the_file(load):
    config = load('[amc]\nselect = "return"\nbeta = 2.0')
    with pytest.raises(ConfigurationError, match=r"needs rewards.*\(select: from the config file .*amc\.toml\)"):
        Settings.chosen(config, {"beta": 1.0}, rewards=None)
    with pytest.raises(ConfigurationError, match=r"^horizon must be at least 1, got 0$"):
        Settings.chosen(load(""), {"horizon": 0})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"n_particles": "5"}, "n_particles must be a whole number, got '5'"),
        ({"horizon": 2.5}, "horizon must be a whole number, got 2.5"),
        ({"budget": 2}, "budget must be a Budget such as Budget(dollars=2), got 2"),
    ],
)
def test_a_value_of_another_type_is_refused_where_the_graph_is_built(load, given, sentence):
    with pytest.raises(ConfigurationError, match=f"^{re.escape(sentence)}$"):
        Settings.chosen(load(""), given)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('critc = "uniform"', "the top level has no key 'critc' (did you mean 'critic'?)"),
        ("[amcc]", "the top level has no key 'amcc' (did you mean 'amc'?)"),
        ("[amc]\nn_particle = 3", "[amc] has no key 'n_particle' (did you mean 'n_particles'?)"),
        ("[amc]\nzzz = 3", "[amc] has no key 'zzz' (it takes beta, durable_every, emit, finished, horizon,"),
        ('[policy]\nmodel = "m"\nbase = "u"', "[policy] has no key 'base' (did you mean 'base_url'?)"),
        ('[embeddings]\nmodel = "m"\ntemperature = 1', "'temperature' (did you mean 'temperature' in [policy]?)"),
        ("n_particles = 3", "the top level has no key 'n_particles' (did you mean 'n_particles' in [amc]?)"),
        ("[amc]\non_critic_eror = 1", "no key 'on_critic_eror' (did you mean 'on_critic_error' at the top level?)"),
        (f'critic = "judge:openai:m?api_key={SECRET}"', "critic: expected a critic's string without a key"),
        (f'[policy]\nmodel = "m"\nbase_url = "http://me:{SECRET}@h"', "base_url: expected a URL without a user name"),
        (f'[policy]\nmodel = "m"\nbase_url = "http://h?token={SECRET}"', "base_url: expected a URL without"),
        (f'[policy]\nmodel = "m"\napi_key = "{SECRET}"', "[policy] has no key 'api_key'"),
        ('[prices."a.b"]\ninput = 1\noutputs = 1', "[prices.\"a.b\"] has no key 'outputs' (did you mean 'output'?)"),
        ('[prices."a.b"]\ninput = 1\noutputs = 1', "[prices.\"a.b\"] needs 'output'"),
        ("[prices]\nm = 3", "[prices] m: expected a table, got 3"),
        ("amc = 3", "amc: expected a table, got 3"),
        ("critic = 3", "critic: expected a valid string, got 3"),
        ('[amc]\nn_particles = "15"', f"[amc] n_particles: {SIZE}, got '15'"),
        ("[amc]\nn_particles = true", f"[amc] n_particles: {SIZE}, got True"),
        ("[amc]\nhorizon = 0", "[amc] horizon must be at least 1, got 0"),
        ("[amc]\nbeta = nan", "[amc] beta: expected a finite number, got nan"),
        ("[amc]\nbeta = inf", "[amc] beta: expected a finite number, got inf"),
        ("[amc]\nseed = -1", "[amc] seed must be at least 0, got -1"),
        ("[amc]\nquorum = 0", "[amc] quorum must be at least 1, got 0"),
        ("[amc]\nrun_timeout = 0", "[amc] run_timeout must be a positive number of seconds, got 0"),
        ('[amc]\nscheme = "random"', "[amc] unknown resampling scheme 'random'; choose one of multinomial,"),
        ('[amc]\nfinished = "retired"', "[amc] finished: expected 'retire' or 'keep', got 'retired'"),
        ("[amc]\nresample = 4", "[amc] resample: expected {at_steps = [4, 8]} (whole steps from 1), {ess_below = 0.5}"),
        ("[amc]\nresample = {at_steps = []}", "got {'at_steps': []}"),
        ("[amc]\nresample = {at_steps = [0]}", "got {'at_steps': [0]}"),
        ("[amc]\nresample = {at_steps = [4], ess_below = 0.5}", "got {'at_steps': [4], 'ess_below': 0.5}"),
        ("[amc]\nresample = {ess_below = 2}", "got {'ess_below': 2}"),
        ('[policy]\nmodel = "m"\nbase_url = "localhost:1"', "[policy] base_url: expected a URL that begins"),
        ("a = 1\nb = ]", "is not valid TOML: Invalid value (at line 2, column 5)"),
    ],
)  # fmt: skip
def test_faults_are_named_with_their_place(load, text, sentence):
    with pytest.raises(ConfigurationError) as caught:
        load(text)
    assert sentence in str(caught.value)
    assert "amc.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_every_mistake_is_named_at_once(load):
    with pytest.raises(ConfigurationError, match=r"'crtic'.*|'betta'.*") as caught:
        load("crtic = 1\n[amc]\nbetta = 1")
    assert all(word in str(caught.value) for word in ("'crtic'", "'betta'"))


def test_a_key_pasted_into_the_file_is_not_repeated(load):
    with pytest.raises(ConfigurationError) as caught:
        load('[policy]\nmodel = "m"\nkey = "sk-secret"')
    assert "did you mean 'key_env'" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        Config.load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigurationError, match="Is a directory"):
        Config.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'critic = "\xff"')
    with pytest.raises(ConfigurationError, match=r"latin\.toml is not valid TOML.*utf-8"):
        Config.load(tmp_path / "latin.toml")


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    assert configured() == Config()
    monkeypatch.setenv("AMC_CONFIG", "")
    assert configured() == Config()
    path = tmp_path / "amc.toml"
    path.write_text('critic = "uniform"')
    monkeypatch.setenv("AMC_CONFIG", str(path))
    assert configured().critic == "uniform"
    assert configured().name == f"config file {path}"
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"AMC_CONFIG=.*No such file"):
        configured()


def test_importing_the_package_needs_no_pydantic(repository):
    code = "import sys; import amc_agents, amc_agents.cli; print('pydantic' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=60)
    assert told.stdout == "False\n", told.stderr


@pytest.mark.parametrize("kind", [str, Path])
def test_the_file_may_be_given_by_its_path(kind, tmp_path):
    path = tmp_path / "amc.toml"
    path.write_text('critic = "uniform"\n[amc]\nn_particles = 3')
    assert configured(kind(path)) == Config.load(path)
    given = Config()
    assert configured(given) is given
    with pytest.raises(ConfigurationError, match=r"config file .*other\.toml"):
        configured(kind(tmp_path / "other.toml"))


def test_an_object_that_is_not_a_configuration_is_refused():
    with pytest.raises(ConfigurationError, match=r"takes a path such as .* or a Config, got dict"):
        configured({"critic": "uniform"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 100_000, "nested too deep"),
        ("".join(f"k{number} = 1\n" for number in range(2000)), "has no key 'k0'.*; and 1997 more"),
    ],
)
def test_a_hostile_file_is_a_short_error(tmp_path, text, message):
    file = tmp_path / "amc.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        Config.load(file)
    assert len(str(caught.value)) < 600
