"""The script that makes the shipped value model."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).parent.parent / "reproduce" / "crafting" / "make_value.py"


@pytest.fixture(scope="module")
def script():
    """The module, which is in no package."""
    spec = spec_from_file_location("make_value", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("player", "name"),
    [
        ("crafting", "embedded:crafting"),
        (Path("models/workshop"), "embedded:workshop"),
        ("models/mine/", "embedded:mine"),
    ],
)
def test_trajectories_are_stored_under_the_policy_that_played(script, player, name):
    assert script.policy_name(player) == name
