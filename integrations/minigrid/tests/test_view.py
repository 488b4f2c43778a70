import pytest

pytest.importorskip("minigrid")

from amc_agents_minigrid import describe, make_level
from minigrid.core.world_object import Ball, Box, Door, Key, Wall

EAST, SOUTH, WEST, NORTH = range(4)


@pytest.fixture
def empty_room():
    """An 8 x 8 room without things; walls at 0 and 7, the agent at (3, 3) looking east."""
    level = make_level("BabyAI-GoToObj-v0", 0, 30)
    for column in range(1, 7):
        for row in range(1, 7):
            level.grid.set(column, row, None)
    level.agent_pos, level.agent_dir = (3, 3), EAST
    return level


def test_walls_are_told_straight_left_right_and_ahead_within_the_view(empty_room):
    # The view reaches 3 steps to the sides: the wall 4 steps to the right is outside.
    assert describe(empty_room) == "You see a wall 3 steps left, You see a wall 4 steps forward"
    empty_room.agent_pos = (6, 6)
    assert describe(empty_room) == "You see a wall 1 step right, You see a wall 1 step forward"


@pytest.mark.parametrize(
    ("direction", "place"),
    [
        (EAST, "2 steps right and 1 step forward"),
        (NORTH, None),
        (WEST, None),
        (SOUTH, "1 step left and 2 steps forward"),
    ],
)
def test_a_thing_is_placed_relative_to_where_the_agent_looks(empty_room, direction, place):
    empty_room.grid.set(4, 5, Key("green"))
    empty_room.agent_dir = direction
    told = f"You see a green key {place}"
    assert (told in describe(empty_room)) if place else ("key" not in describe(empty_room))


def test_things_beside_and_ahead_have_one_distance_and_come_from_left_to_right_near_before_far(empty_room):
    for place, thing in {(3, 2): Ball("red"), (6, 3): Box("grey"), (5, 3): Key("blue"), (5, 5): Ball("purple")}.items():
        empty_room.grid.set(*place, thing)
    assert describe(empty_room) == (
        "You see a red ball 1 step left, You see a blue key 2 steps forward, You see a grey box 3 steps forward, "
        "You see a purple ball 2 steps right and 2 steps forward"
    )


def test_what_is_carried_comes_first(empty_room):
    empty_room.carrying = Box("yellow")
    assert describe(empty_room).startswith("You carry a yellow box, You see a wall 3 steps left")


@pytest.mark.parametrize(
    ("door", "told"),
    [
        (Door("red"), "a closed red door"),
        (Door("red", is_open=True), "an open red door"),
        (Door("red", is_locked=True), "a locked red door"),
    ],
)
def test_a_door_is_told_with_how_it_stands(empty_room, door, told):
    empty_room.grid.set(5, 3, door)
    assert f"You see {told} 2 steps forward" in describe(empty_room)


def test_what_is_behind_a_wall_is_not_seen(empty_room):
    empty_room.grid.set(5, 3, Key("green"))
    for row in range(1, 7):
        empty_room.grid.set(4, row, Wall())
    assert describe(empty_room) == "You see a wall 3 steps left, You see a wall 1 step forward"


def test_the_text_is_the_same_wherever_in_the_world_the_room_is_turned_to(empty_room):
    told = set()
    for direction, place in ((EAST, (5, 4)), (SOUTH, (2, 5)), (WEST, (1, 2)), (NORTH, (4, 1))):
        empty_room.grid.set(*place, Ball("red"))
        empty_room.agent_dir = direction
        told.update(part for part in describe(empty_room).split(", ") if "ball" in part)
        empty_room.grid.set(*place, None)
    assert told == {"You see a red ball 1 step right and 2 steps forward"}
