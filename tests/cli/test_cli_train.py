"""The flags of `amc train` against the settings that they fill."""

from dataclasses import fields, is_dataclass

import pytest
import typer

pytest.importorskip("torch")

from amc_agents.cli.commands import train_app
from amc_agents.cli.shared_options import filled
from amc_agents.training.settings import GoalTrainingSettings, VerdictTrainingSettings
from amc_agents.training.value.train_value import ValueTrainingSettings

OTHER_DEFAULT = {("value", "target")}
"""The command line predicts the whole return, the paper and the settings the return to come."""


def flat(settings):
    """Fields of settings and of the dataclasses in them, by name."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    nested = [value for value in values.values() if is_dataclass(value)]
    return values | {name: value for each in nested for name, value in flat(each).items()}


@pytest.mark.parametrize(
    ("command", "settings", "flags"),
    [
        ("value", ValueTrainingSettings(), 26),
        ("verdict", VerdictTrainingSettings(), 4),
        ("goal", GoalTrainingSettings(), 14),
    ],
)
def test_a_flag_that_is_not_given_leaves_the_settings_default(command, settings, flags):
    parameters = typer.main.get_group(train_app).commands[command].params
    defaults = flat(settings)
    shared = {parameter.name: parameter.default for parameter in parameters if parameter.name in defaults}
    assert len(shared) == flags
    for name, default in shared.items():
        if (command, name) not in OTHER_DEFAULT and default not in (None, (), False):
            assert default == defaults[name], name


def test_flags_fill_settings_and_the_settings_in_them():
    settings = filled(GoalTrainingSettings(seed=3), {"nearness": False, "seed": 0, "random": 0.9})
    assert (settings.nearness, settings.seed, settings.shares.random) == (False, 0, 0.9)
    assert settings.hidden == GoalTrainingSettings().hidden


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"target": "return", "dtype": "float32", "quantize": None, "policies": None, "report_to": ()}),
        (["--qlora", "--policy", "a", "--policy", "b"], {"quantize": "4bit", "policies": ("a", "b")}),
        (
            ["--loss", "bce", "--target", "future", "--lora-rank", "3"],
            {"loss": "bce", "target": "future", "lora_rank": 3},
        ),
        (
            ["--keep-best", "--report-to", "mlflow"],
            {"keep_best": True, "report_to": ("mlflow",), "learning_rate": 3e-3},
        ),
    ],
)
def test_options_of_the_command_are_the_settings_of_the_training(arguments, expected, monkeypatch, tmp_path):
    given = []

    def train_value(base, data, out, settings, **others):
        given.append(settings)
        raise ZeroDivisionError

    monkeypatch.setattr("amc_agents.training.value.train_value.train_value", train_value)
    (tmp_path / "data").mkdir()
    command = typer.main.get_group(train_app)
    with pytest.raises(ZeroDivisionError):
        command(["value", "--data", str(tmp_path / "data"), "--out", "x", *arguments], standalone_mode=False)
    assert flat(given[0]) | expected == flat(given[0])
