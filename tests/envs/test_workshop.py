"""The workshop: finite stock, hidden success, its generator, its text and its exact planner."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amc_agents.envs.crafting import Recipe, RecipeBook
from amc_agents.envs.crafting import generate_task as crafting_task
from amc_agents.envs.registry import world
from amc_agents.envs.workshop import (
    WorkshopTask,
    WorkshopWorld,
    generate_task,
    instruction,
    parse_instruction,
    solution,
    solution_from,
)
from amc_agents.envs.workshop.tasks import n_traps
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Task

KINDS = ("stock", "hidden", "both")
BOOK = RecipeBook(
    (
        Recipe("gate", 1, (("rod", 1), ("clay", 1))),
        Recipe("gate", 1, (("plate", 1),)),
        Recipe("rod", 1, (("clay", 1),)),
        Recipe("rod", 2, (("flint", 2),)),
        Recipe("plate", 1, (("flint", 1), ("wax", 3))),
    )
)


def task_of(stock=None, without=None, goal="gate"):
    payload = WorkshopTask(goal, BOOK, 0, 2, stock, without)
    return Task("workshop/example", instruction(payload), payload)


async def at(task, *actions):
    state = WorkshopWorld()
    await state.reset(task)
    return state, [await state.step(action) for action in actions]


async def said(task, *actions):
    return [answer.observation for answer in (await at(task, *actions))[1]]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_worlds_keep_the_contract(kind):
    task = generate_task(3, "docs", kind)
    await check_environment(WorkshopWorld, task, solution(task.payload).actions)


async def test_raw_items_run_out():
    task = task_of(stock={"clay": 3})
    answers = await said(task, "get 2 clay", "get 2 clay", "get 1 clay", "get 1 clay", "get 1 wax")
    assert answers == [
        "Got 2 clay",
        "Could not find 2 clay",
        "Got 1 clay",
        "Could not find 1 clay",
        "Could not find 1 wax",
    ]


async def test_a_wrong_crafting_destroys_its_ingredients_where_the_stock_is_finite():
    state, answers = await at(task_of(stock={"clay": 3}), "get 3 clay", "craft 1 rod using 2 clay")
    assert answers[-1].observation == "Crafted junk"
    assert state.inventory == {"clay": 1}
    state, answers = await at(task_of(), "get 3 clay", "craft 1 rod using 2 clay")
    assert answers[-1].observation == "Could not find a valid recipe for minecraft:rod"
    assert state.inventory == {"clay": 3}


async def test_a_crafting_without_its_ingredients_destroys_nothing():
    state, answers = await at(task_of(stock={"clay": 3}), "get 1 clay", "craft 1 rod using 2 clay")
    assert answers[-1].observation == "Could not find enough items to craft minecraft:rod"
    assert state.inventory == {"clay": 1}


async def test_junk_of_an_item_offered_twice_takes_what_there_is():
    state, answers = await at(task_of(stock={"clay": 3}), "get 3 clay", "craft 1 rod using 2 clay, 2 clay")
    assert answers[-1].observation == "Crafted junk"
    assert state.inventory == {}


async def test_the_end_looks_the_same_whether_or_not_the_forbidden_item_was_used():
    clean = ["get 1 clay", "craft 1 rod using 1 clay", "get 1 clay", "craft 1 gate using 1 rod, 1 clay"]
    dirty = ["get 2 flint", "craft 2 rod using 2 flint", "get 1 clay", "craft 1 gate using 1 rod, 1 clay"]
    ends = [(await at(task_of(without="flint"), *actions))[1][-1] for actions in (clean, dirty)]
    assert ends[0].observation == ends[1].observation
    assert [end.done for end in ends] == [True, True]
    assert [end.reward for end in ends] == [1.0, 0.0]


async def test_fetching_the_forbidden_item_is_allowed_and_any_crafting_with_it_spoils_the_task():
    state, _ = await at(task_of(without="flint"), "get 2 flint")
    assert not state.spoiled
    await state.step("craft 2 rod using 2 flint")
    twin = await state.fork(0)
    assert state.spoiled
    assert twin.spoiled
    await state.reset(task_of(without="flint"))
    assert not state.spoiled


async def test_junk_from_the_forbidden_item_spoils_the_task():
    state, _ = await at(
        task_of(stock={"clay": 2, "flint": 1}, without="flint"), "get 1 flint", "craft 1 rod using 1 flint"
    )
    assert state.spoiled


async def test_a_task_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="expected a Task with a WorkshopTask payload, got CraftingTask"):
        await WorkshopWorld().reset(crafting_task(0))


def shortest(task, state_limit=200_000):
    """The fewest actions by breadth-first search over fetches of single items and craftings; a fetch of several items
    counts once, so states carry which item was fetched last."""
    stock = tuple(sorted((task.payload.stock or dict.fromkeys(task.payload.book.raw, 8)).items()))
    start = ((), stock, "", False)
    layer, seen = {start: 0}, {start: 0}
    while layer:
        key = min(layer, key=layer.__getitem__)
        cost = layer.pop(key)
        inventory, left, last, _ = dict(key[0]), dict(key[1]), key[2], key[3]
        if inventory.get(task.payload.goal):
            return cost
        moves = []
        for item, count in left.items():
            if count:
                held = {**inventory, item: inventory.get(item, 0) + 1}
                moves.append((held, {**left, item: count - 1}, item, cost + (item != last)))
        for way in task.payload.book.recipes:
            if any(inventory.get(name, 0) < count or name == task.payload.without for name, count in way.inputs):
                continue
            held = dict(inventory)
            for name, count in way.inputs:
                held[name] -= count
            held[way.item] = held.get(way.item, 0) + way.count
            moves.append((held, left, "", cost + 1))
        for held, left_, item, total in moves:
            state = (tuple(sorted((k, v) for k, v in held.items() if v)), tuple(sorted(left_.items())), item, False)
            if total < seen.get(state, 99):
                seen[state] = layer[state] = total
        assert len(seen) < state_limit
    return None


@pytest.mark.parametrize("without", [None, "clay", "flint", "wax"])
def test_the_planner_is_exact_on_every_small_stock(without):
    for clay, flint, wax in product(range(3), range(3), (0, 2, 3)):
        task = task_of(stock={"clay": clay, "flint": flint, "wax": wax}, without=without)
        best = solution(task.payload)
        assert (best and best.n_steps) == shortest(task), (clay, flint, wax)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
async def test_solutions_of_generated_tasks_work_and_every_task_has_a_trap(kind):
    for seed in range(40):
        task = generate_task(seed, "train", kind)
        best = solution(task.payload)
        _, answers = await at(task, *best.actions)
        assert [answer.done for answer in answers] == [False] * (best.n_steps - 1) + [True]
        assert answers[-1].reward == 1.0
        assert best.n_steps == task.payload.optimal_steps
        assert n_traps(task.payload) >= 1
        assert (task.payload.stock is None) == (kind == "hidden")
        assert (task.payload.without is None) == (kind == "stock")


async def test_a_state_s_planner_counts_what_is_held_and_what_is_left():
    task = task_of(stock={"clay": 2, "flint": 1, "wax": 2})
    state, _ = await at(task, "get 2 clay", "craft 1 rod using 1 clay")
    assert solution_from(task.payload, state).actions == ["craft 1 gate using 1 rod, 1 clay"]
    await state.step("craft 1 rod using 1 clay")
    assert solution_from(task.payload, state) is None


async def test_random_play_never_leaves_a_dead_end():
    rng = np.random.default_rng(0)
    for seed in range(30):
        task = generate_task(seed, "train", "both")
        book, state, dead = task.payload.book, WorkshopWorld(), False
        await state.reset(task)
        for _ in range(15):
            way = book.recipes[int(rng.integers(len(book.recipes)))]
            fetches = [f"get {count} {name}" for name, count in way.inputs if name in book.raw]
            answer = await state.step(str(rng.choice([*fetches, str(way)])))
            if answer.done:
                assert answer.reward == (not dead)
                break
            solvable = solution_from(task.payload, state) is not None
            assert not (dead and solvable)
            dead = not solvable


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_deterministic_and_readable_from_their_text(kind):
    for seed in range(20):
        task = generate_task(seed, "test", kind)
        assert task == generate_task(seed, "test", kind)
        parsed = parse_instruction(task.instruction).payload
        assert (parsed.goal, parsed.book, parsed.stock, parsed.without, parsed.optimal_steps) == (
            task.payload.goal, task.payload.book, task.payload.stock, task.payload.without, task.payload.optimal_steps,
        )  # fmt: skip


@pytest.mark.thorough
def test_splits_share_no_task():
    texts = [generate_task(seed, split).instruction for split in ("train", "test") for seed in range(30)]
    assert len(set(texts)) == 60


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("craft a gate", "expected an instruction"),
        (
            "Crafting commands:\ncraft 1 rod using 2 clay\n\nStock: 1 clay\n\nGoal: craft rod.",
            "do not allow crafting 'rod'",
        ),
        ("Crafting commands:\ncraft 1 rod using 2 clay\n\nStock: clay\n\nGoal: craft rod.", "expected a stock"),
    ],
)
def test_texts_of_no_task_are_refused(text, fault):
    with pytest.raises(ConfigurationError, match=fault):
        parse_instruction(text)


@pytest.mark.parametrize(("name", "kind"), [("stock", "stock"), ("hidden", "hidden"), ("stock-hidden", "both")])
def test_the_registry_has_the_worlds(name, kind):
    spec = world(f"crafting-{name}")
    assert [task.id for task in spec.tasks(2, "test", 5)] == [f"workshop/{kind}/test/{seed}" for seed in (5, 6)]
    assert isinstance(spec.make(), WorkshopWorld)
