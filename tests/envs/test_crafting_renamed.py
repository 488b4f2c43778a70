"""Official tasks under names that the embedded policy knows."""

import json
from pathlib import Path

import pytest

from amc_agents.envs.crafting import official_tasks, plan
from amc_agents.envs.crafting.official import renamed, renamed_tasks
from amc_agents.envs.crafting.tasks import CRAFTED, RAW
from amc_agents.envs.registry import TEXTCRAFT_VARIABLE, world
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import WordTokenizer, model_folder
from amc_agents.testing import check_environment

DATA = Path(__file__).resolve().parents[2] / "../shared/data/textcraft"
with_data = pytest.mark.skipif(not (DATA / "recipes.json").is_file(), reason="the official recipes are not here")


def shapeless(item, count, *inputs, group=""):
    entry = {"type": "minecraft:crafting_shapeless", "result": {"item": f"minecraft:{item}", "count": count}}
    return entry | {"ingredients": list(inputs)} | ({"group": group} if group else {})


RECIPES = {
    "birch_planks": shapeless("birch_planks", 4, {"item": "minecraft:birch_log"}, group="planks"),
    "oak_planks": shapeless("oak_planks", 4, {"item": "minecraft:oak_log"}, group="planks"),
    "stick": shapeless("stick", 4, {"tag": "minecraft:planks"}, {"tag": "minecraft:planks"}),
    "torch": shapeless("torch", 1, {"item": "minecraft:stick"}, {"item": "minecraft:coal"}),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recipes.json").write_text(json.dumps(RECIPES))
    (tmp_path / "textcraft_crafting_depths.csv").write_text("minecraft:torch\t3\nminecraft:stick\t2\n")
    (tmp_path / "textcraft_test_ids.csv").write_text("0\n")
    (tmp_path / "textcraft_train_ids.csv").write_text("1\n")
    return tmp_path


def test_the_recipes_stay_and_the_names_change(folder):
    (task,) = renamed_tasks(folder, 1)
    (official,) = official_tasks(folder)
    assert (task.id, task.payload.depth) == ("textcraft/0/renamed", 3)
    mine, theirs = (one.instruction.splitlines()[1:-2] for one in (task, official))
    assert len(mine) == len(theirs) == 4
    shape = [[word for word in line.split() if word.isdigit()] for line in mine]
    assert shape == [[word for word in line.split() if word.isdigit()] for line in theirs]
    made = {way.item for way in task.payload.book.recipes}
    assert made <= set(CRAFTED)
    assert task.payload.book.raw <= set(RAW)
    assert len(made) == 4
    # A stick asks for the item of the tag that the planner would make: birch, the first of two alike.
    stick = next(way for way in task.payload.book.recipes if way.count == 4 and way.inputs[0][0] in made)
    birch = task.payload.book.by_item[stick.inputs[0][0]][0]
    assert (stick.inputs[0][1], birch.count, len(birch.inputs)) == (2, 4, 1)
    assert not task.payload.book.tags
    assert len(plan(task.payload.book, task.payload.goal)) == len(plan(official.payload.book, official.payload.goal))
    assert renamed(official) == task
    again = renamed(official, seed=1)
    assert again.instruction != task.instruction
    assert (again.id, again.payload.optimal_steps) == (task.id, task.payload.optimal_steps)


def test_the_splits_are_the_published_ones_and_no_task_is_made_up(folder):
    assert [one.id for one in renamed_tasks(folder, 1, "train")] == ["textcraft/1/renamed"]
    with pytest.raises(ConfigurationError, match="'test' has 1 tasks; 2 tasks from index 0"):
        renamed_tasks(folder, 2)
    with pytest.raises(ConfigurationError, match="got 'dev'"):
        renamed_tasks(folder, 1, "dev")


async def test_it_is_a_world_by_name(folder, monkeypatch):
    monkeypatch.delenv(TEXTCRAFT_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=f"set {TEXTCRAFT_VARIABLE} to their folder"):
        world("textcraft-renamed")
    monkeypatch.setenv(TEXTCRAFT_VARIABLE, str(folder))
    found = world("textcraft-renamed")
    (task,) = found.tasks(1, "test", 0)
    await check_environment(found.make, task, plan(task.payload.book, task.payload.goal))


@pytest.mark.thorough
@with_data
def test_every_official_task_can_be_renamed_and_read_by_the_embedded_policy():
    tokenizer = WordTokenizer.from_folder(model_folder("crafting"))
    same = []
    for official in official_tasks(DATA, "all"):
        task = renamed(official)
        way = plan(task.payload.book, task.payload.goal)
        same.append(len(way) == len(plan(official.payload.book, official.payload.goal)))
        for text in (task.instruction, *(f"Action: {action}" for action in way)):
            assert tokenizer.vocabulary["<unk>"] not in tokenizer.encode(text), text
    # In one, the planner would take another item of a tag once it carries it.
    assert (len(same), sum(same)) == (544, 543)
