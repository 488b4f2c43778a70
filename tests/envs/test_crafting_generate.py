from __future__ import annotations

import hashlib

import numpy as np
import pytest

from amc_agents.envs.crafting import CraftingWorld, Recipe, RecipeBook, generate_task, generate_tasks, next_move, plan
from amc_agents.types import Task

TASKS_AND_PLANS = "67e9b331c6345bebb9c2eadd74972241f2f7a3c8761d108c9f85ca99a4c74b99"
PLAY = "da0125583b04b15aa4f1c49c8df82ac871a6c4ee8b1d12314382adcef81d682a"


def pinned(tasks: list[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        made = task.payload
        recipes = [(recipe.item, recipe.count, recipe.inputs) for recipe in made.book.recipes]
        steps = plan(made.book, made.goal)
        digest.update(
            repr((task.id, task.instruction, made.goal, made.optimal_steps, made.depth, recipes, steps)).encode()
        )
    return digest.hexdigest()


async def played(tasks: list[Task]) -> str:
    """What the world answers, and the planner advises, along seeded play that is often wrong."""
    digest = hashlib.sha256()
    rng = np.random.default_rng(0)
    for task in tasks:
        made, world = task.payload, CraftingWorld()
        await world.reset(task)
        names = sorted({name for recipe in made.book.recipes for name, _ in recipe.inputs})
        for _ in range(15):
            move = next_move(made.book, made.goal, world.inventory)
            assert move is not None
            recipe = made.book.recipes[int(rng.integers(len(made.book.recipes)))]
            others = [str(recipe), f"get {rng.integers(4)} {rng.choice(names)}", "inventory", f"craft {recipe.item}"]
            action = move.action if rng.random() < 0.6 else str(rng.choice(others))
            answer = await world.step(action)
            digest.update(repr((str(move.subgoal), move.fetch, action, answer, world.inventory)).encode())
            if answer.done:
                break
    return digest.hexdigest()


async def test_tasks_plans_and_play_are_what_the_shipped_policy_was_trained_on():
    tasks = [generate_task(seed, split) for split in ("train", "test") for seed in range(100)]
    assert pinned(tasks) == TASKS_AND_PLANS
    assert await played(tasks) == PLAY


async def test_planner_solves_300_tasks_in_the_world():
    for task in [*generate_tasks(150, "train"), *generate_tasks(150, "test")]:
        world = CraftingWorld()
        await world.reset(task)
        steps = plan(task.payload.book, task.payload.goal) or []
        answers = [await world.step(action) for action in steps]
        assert [answer.done for answer in answers] == [False] * (len(steps) - 1) + [True]
        assert answers[-1].reward == 1.0
        assert len(steps) == task.payload.optimal_steps
        assert len(steps) in range(2, 15)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_any_depth(depth):
    for seed in range(10):
        made = generate_task(seed, depth=depth).payload
        assert made.depth == depth == made.book.depth(made.goal)


@pytest.mark.thorough
def test_splits_share_no_book():
    def books(split: str) -> list[tuple[str, frozenset[Recipe]]]:
        return [(task.payload.goal, frozenset(task.payload.book.recipes)) for task in generate_tasks(500, split)]

    train, test = books("train"), books("test")
    assert len({*train, *test}) == 1000


def test_instruction_lists_the_book_and_the_goal():
    task = generate_task(0)
    head, *recipes, empty, goal = task.instruction.split("\n")
    assert head == "Crafting commands:"
    assert recipes == [str(recipe) for recipe in task.payload.book.recipes]
    assert (empty, goal) == ("", f"Goal: craft {task.payload.goal}.")


def test_distractors_are_in_every_book():
    for task in generate_tasks(50):
        book, pending, needed = task.payload.book, [task.payload.goal], set()
        for name in pending:
            needed |= {*book.ways(name)}
            pending += [used for way in book.ways(name) for used, _ in way.inputs]
        assert len(book.recipes) - len(needed) in (3, 4, 5)


@pytest.mark.thorough
def test_no_such_book_is_an_error():
    with pytest.raises(ValueError, match="no book of depth 4 with 1 to 2 optimal steps"):
        generate_task(0, depth=4, optimal_steps=(1, 2))


PLANKS = RecipeBook(
    (
        Recipe("oak planks", 4, (("oak logs", 1),)),
        Recipe("birch planks", 4, (("birch logs", 1),)),
        Recipe("sign", 3, (("planks", 6), ("stick", 1))),
        Recipe("stick", 4, (("ladder", 1),)),
        Recipe("ladder", 1, (("stick", 2),)),
        Recipe("stick", 4, (("planks", 2),)),
    ),
    {"oak planks": "planks", "birch planks": "planks"},
)


@pytest.mark.parametrize(
    ("inventory", "action"),
    [
        ({}, "get 1 oak logs"),
        ({"oak planks": 8}, "craft 4 stick using 2 oak planks"),
        ({"birch planks": 6, "stick": 1}, "craft 3 sign using 6 birch planks, 1 stick"),
        ({"birch planks": 5, "oak planks": 5, "stick": 1}, "get 1 oak logs"),
    ],
)
def test_planner_takes_any_item_of_a_tag_but_never_mixes(inventory, action):
    move = next_move(PLANKS, "sign", inventory)
    assert move is not None
    assert move.action == action


def test_planner_does_not_run_in_circles():
    # The first way of making a stick needs a ladder, which needs a stick.
    assert plan(PLANKS, "ladder") == [
        "get 1 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 4 stick using 2 oak planks",
        "craft 1 ladder using 2 stick",
    ]
    assert plan(RecipeBook(PLANKS.recipes[3:5]), "ladder") is None
    assert plan(PLANKS, "oak logs") is None
    assert plan(PLANKS, "sign", limit=3) is None
