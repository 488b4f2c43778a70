"""The flags of `amc train` against the settings that they fill."""

from dataclasses import fields, is_dataclass

import pytest
import typer

pytest.importorskip("torch")

from amc_agents.cli.commands import train_app
from amc_agents.cli.train import with_flags
from amc_agents.training.goal.train_goal import GoalTrainingSettings
from amc_agents.training.value.train_value import ValueTrainingSettings
from amc_agents.training.verdict.train_verdict import VerdictTrainingSettings

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
        ("value", ValueTrainingSettings(), 24),
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
        if (command, name) not in OTHER_DEFAULT and default is not None and default != ():
            assert getattr(default, "value", default) == defaults[name], name


def test_only_flags_that_are_not_given_are_ignored():
    settings = with_flags(GoalTrainingSettings(seed=3), nearness=False, seed=0, hidden=None)
    assert (settings.nearness, settings.seed, settings.hidden) == (False, 0, GoalTrainingSettings().hidden)
