from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from amc_agents.envs.crafting import CraftingWorld, load_recipes, official_tasks, plan
from amc_agents.envs.crafting.official import MAX_DISTRACTORS, needed_recipes
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task

DATA = Path(__file__).resolve().parents[2] / "../shared/data/textcraft"
RECIPES = DATA / "recipes.json"
with_data = pytest.mark.skipif(not RECIPES.is_file(), reason="the official recipes are not here")

SMALL = {
    "acacia_planks": {
        "type": "minecraft:crafting_shapeless",
        "group": "planks",
        "ingredients": [{"tag": "minecraft:acacia_logs"}],
        "result": {"item": "minecraft:acacia_planks", "count": 4},
    },
    "bread": {"type": "minecraft:smelting", "ingredient": {"item": "minecraft:dough"}, "result": "minecraft:bread"},
    "chest": {
        "type": "minecraft:crafting_shaped",
        "group": "chest",
        "pattern": ["###", "# #", "###"],
        "key": {"#": [{"tag": "minecraft:planks"}, {"item": "minecraft:stone"}]},
        "result": {"item": "minecraft:chest"},
    },
    "iron_ingot_from_nuggets": {
        "type": "minecraft:crafting_shaped",
        "pattern": ["###", "###", "###"],
        "key": {"#": {"item": "minecraft:iron_nugget"}},
        "result": {"item": "minecraft:iron_ingot"},
    },
    "iron_ingot_from_iron_block": {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "minecraft:iron_block"}],
        "result": {"item": "minecraft:iron_ingot", "count": 9},
    },
    "dust_from_block": {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"tag": "minecraft:any_block"}],
        "result": {"item": "minecraft:dust"},
    },
    "iron_nugget": {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "minecraft:iron_ingot"}],
        "result": {"item": "minecraft:iron_nugget", "count": 9},
    },
    "soup": {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "minecraft:leek"}, {"item": "minecraft:bowl"}, {"item": "minecraft:leek"}],
        "result": {"item": "minecraft:soup"},
    },
}


def test_the_public_rules(tmp_path):
    file = tmp_path / "recipes.json"
    file.write_text(json.dumps(SMALL))
    book = load_recipes(file)
    assert [str(recipe) for recipe in book.recipes] == [
        "craft 4 acacia planks using 1 acacia logs",
        "craft 1 chest using 8 planks",
        "craft 9 iron nugget using 1 iron ingot",
        "craft 1 soup using 2 leek, 1 bowl",
    ]
    assert book.tags == {"planks"}
    # A tag without craftable items can be fetched, and so can the items of a recipe that is left out, but not its tag.
    assert book.raw == {"acacia logs", "iron ingot", "iron block", "leek", "bowl", "dust"}
    assert book.tag_of == {"acacia planks": "planks"}
    assert [book.depth(name) for name in ("acacia logs", "planks", "acacia planks", "chest")] == [0, 1, 1, 2]


def test_folder_of_files_gives_the_same_book(tmp_path):
    for name, entry in reversed(SMALL.items()):
        (tmp_path / f"{name}.json").write_text(json.dumps(entry))
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "recipes.json").write_text(json.dumps(SMALL))
    assert load_recipes(tmp_path) == load_recipes(tmp_path / "all") == load_recipes(str(tmp_path / "all/recipes.json"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "no crafting recipes at"),
        ({"bread": SMALL["bread"]}, "no crafting recipes at"),
        ({"odd": {"type": "minecraft:crafting_shaped"}}, "recipe 'odd' is not a TextCraft recipe: KeyError"),
        ({"odd": {"type": "minecraft:crafting_shapeless", "ingredients": [[]]}}, "'odd' is not .* IndexError"),
    ],
)
def test_what_is_no_recipe_is_named(tmp_path, entries, message):
    file = tmp_path / "recipes.json"
    file.write_text(json.dumps(entries))
    with pytest.raises(ConfigurationError, match=message):
        load_recipes(file)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ConfigurationError, match="no recipes at"):
        load_recipes(tmp_path / "nowhere")
    (tmp_path / "recipes.json").write_text(json.dumps(SMALL))
    with pytest.raises(ConfigurationError, match=r"textcraft_crafting_depths\.csv is neither in"):
        official_tasks(tmp_path)
    (tmp_path / "textcraft_crafting_depths.csv").write_text("minecraft:chest\t1\n")
    with pytest.raises(ConfigurationError, match=r"'chest' the depth 1, but with these recipes it has the depth 2"):
        official_tasks(tmp_path, "all")
    with pytest.raises(ConfigurationError, match="split must be 'train', 'test' or 'all', got 'dev'"):
        official_tasks(tmp_path, "dev")  # type: ignore[arg-type]


def depth_table() -> list[tuple[str, int]]:
    with (DATA / "textcraft_crafting_depths.csv").open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return [(item.removeprefix("minecraft:").replace("_", " "), int(depth)) for item, depth in rows]


@with_data
def test_every_published_depth_is_met():
    book = load_recipes(RECIPES)
    table = depth_table()
    assert len(table) == len(book.by_item) == 544
    assert {item: book.depth(item) for item in book.by_item} == dict(table)
    assert Counter(depth for _, depth in table) == {1: 148, 2: 273, 3: 112, 4: 11}


@with_data
@pytest.mark.parametrize(
    ("split", "depths"), [("train", {1: 109, 2: 221, 3: 43, 4: 1}), ("test", {1: 39, 2: 34, 3: 24, 4: 3})]
)
def test_splits_have_the_published_depths(split, depths):
    tasks = official_tasks(RECIPES, split)
    assert Counter(task.payload.depth for task in tasks) == depths
    hardest = official_tasks(RECIPES, split, depths=(3, 4))
    assert hardest == [task for task in tasks if task.payload.depth >= 3]
    assert len(hardest) == depths[3] + depths[4]


@pytest.mark.thorough
@with_data
def test_tasks_are_numbered_by_the_rows_of_the_table():
    table = depth_table()
    for task in official_tasks(DATA, "test"):
        number = int(task.id.removeprefix("textcraft/"))
        assert (task.payload.goal, task.payload.depth) == table[number]
        assert task.instruction.endswith(f"\n\nGoal: craft {table[number][0]}.")
    assert not {task.id for task in official_tasks(DATA, "test")} & {task.id for task in official_tasks(DATA, "train")}


@pytest.mark.thorough
@with_data
def test_a_task_lists_what_it_needs_and_a_few_others():
    tasks = official_tasks(RECIPES, "all")
    assert official_tasks(RECIPES, "all")[:50] == tasks[:50]
    extra: Counter[int] = Counter()
    for task in tasks:
        head, *listed, _, _ = task.instruction.split("\n")
        needed = {str(recipe) for recipe in needed_recipes(task.payload.book, task.payload.goal)}
        assert head == "Crafting commands:"
        assert needed <= {*listed}
        assert len({*listed}) == len(listed)
        extra[len(listed) - len(needed)] += 1
    assert max(extra) == MAX_DISTRACTORS
    assert extra[MAX_DISTRACTORS] > 300


async def solve(task: Task) -> float:
    world = CraftingWorld()
    await world.reset(task)
    answers = [await world.step(action) for action in plan(task.payload.book, task.payload.goal) or []]
    assert [answer.done for answer in answers] == [False] * (len(answers) - 1) + [True]
    return sum(answer.reward for answer in answers)


@with_data
async def test_planner_solves_every_official_task_in_the_world():
    assert [await solve(task) for task in official_tasks(RECIPES, "all")] == [1.0] * 544


@with_data
async def test_everything_raw_can_be_fetched_and_nothing_else():
    (task, *_) = official_tasks(RECIPES, "test")
    book = task.payload.book
    world = CraftingWorld()
    await world.reset(task)
    for name in sorted(book.raw):
        assert (await world.step(f"get 1 {name}")).observation == f"Got 1 {name}"
    for name in sorted({*book.by_item, *book.tags}):
        assert (await world.step(f"get 1 {name}")).observation == f"Could not find {name}"


@with_data
async def test_the_whole_book_can_be_crafted_not_only_what_is_listed():
    (task, *_) = (task for task in official_tasks(RECIPES, "test") if "acacia planks" not in task.instruction)
    world = CraftingWorld()
    await world.reset(task)
    await world.step("get 1 acacia logs")
    answer = await world.step("craft 4 acacia planks using 1 acacia logs")
    assert answer.observation == "Crafted 4 minecraft:acacia_planks"
