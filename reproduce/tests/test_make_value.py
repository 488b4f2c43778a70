"""The script that makes the shipped value model."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
from reproduce.crafting import make_value


@pytest.mark.parametrize(
    ("player", "name"),
    [
        ("crafting", "embedded:crafting"),
        (Path("models/workshop"), "embedded:workshop"),
        ("models/mine/", "embedded:mine"),
    ],
)
def test_trajectories_are_stored_under_the_policy_that_played(player, name):
    assert make_value.policy_name(player) == name
