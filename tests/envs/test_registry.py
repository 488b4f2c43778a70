import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from amc_agents.envs import registry as found
from amc_agents.envs.crafting import CraftingWorld
from amc_agents.envs.registry import WorldSpec, world, worlds
from amc_agents.errors import ConfigurationError

OFFERED = WorldSpec(make=CraftingWorld, tasks=lambda n_tasks, split, first: [], horizon=3)
OWN = (
    "crafting",
    "crafting-hidden",
    "crafting-stock",
    "crafting-stock-hidden",
    "textcraft-renamed",
)


@pytest.fixture
def installed(monkeypatch):
    def put(**values):
        points = [EntryPoint(name, value, found.GROUP) for name, value in values.items()]
        monkeypatch.setattr(found, "entry_points", lambda group: [point for point in points if point.group == group])

    return put


async def test_the_library_s_own_world_is_there():
    crafting = world("crafting")
    tasks = list(crafting.tasks(2, "train", 5))
    assert [task.id for task in tasks] == ["crafting/train/5", "crafting/train/6"]
    assert (await crafting.make().reset(tasks[0])).observation == tasks[0].instruction
    assert (crafting.horizon, crafting.model) == (20, "crafting")
    assert "crafting" in worlds()


@pytest.mark.parametrize("name", ["crafting", "crafting-hidden", "crafting-stock", "crafting-stock-hidden"])
def test_settings_are_not_tuned_on_tasks_of_the_shipped_models(name):
    # The value models were trained on the first few hundred tasks.
    assert world(name).model is not None
    assert world(name).unseen_from >= 100_000


def test_an_installed_package_s_world_is_found_by_its_entry_point(installed, monkeypatch):
    installed(harbour=f"{__name__}:OFFERED", absent="no_such_package_anywhere:WORLD")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(OFFERED=OFFERED))
    # Listing imports nothing, so a broken package does not stand in the way of the others.
    assert worlds() == sorted({"absent", "harbour", *OWN})
    assert world("harbour") is OFFERED
    with pytest.raises(ModuleNotFoundError, match="no_such_package_anywhere"):
        world("absent")


def test_an_unknown_name_lists_those_that_there_are(installed):
    installed(harbour="harbour:WORLD")
    with pytest.raises(ConfigurationError, match=r"unknown world 'ocean'; available: crafting, .*, harbour, "):
        world("ocean")


def test_an_entry_point_that_names_something_else_is_refused(installed):
    installed(harbour="amc_agents.envs.crafting:CraftingWorld")
    with pytest.raises(ConfigurationError, match="refers to a type, expected a WorldSpec"):
        world("harbour")
