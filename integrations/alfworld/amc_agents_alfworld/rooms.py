"""Rooms and goals for ALFWorld's engine, generated as problems in PDDL.

What can contain what, which objects can be heated, cooled, cleaned or toggled, and the goals of the task types are
those of ALFWorld's package.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from alfworld.gen import constants
from alfworld.gen.goal_library import gdict

_T = TypeVar("_T")

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""ALFWorld's six task types, in its order."""
LAMP = "DeskLamp"
N_FILLERS = 10
"""Number of objects beside those that the task needs."""
_ROOMS = {
    "Kitchen": {
        **{"CounterTop": 2, "Cabinet": 4, "Drawer": 3, "Fridge": 1, "Microwave": 1, "SinkBasin": 1},
        **{"StoveBurner": 2, "CoffeeMachine": 1, "GarbageCan": 1, "DiningTable": 1},
    },
    "LivingRoom": {
        **{"Sofa": 1, "ArmChair": 2, "CoffeeTable": 1, "SideTable": 2, "Drawer": 2, "Shelf": 2},
        **{"Dresser": 1, "GarbageCan": 1},
    },
    "Bedroom": {
        **{"Bed": 1, "Desk": 1, "SideTable": 2, "Drawer": 4, "Shelf": 2, "Dresser": 1, "Safe": 1, "GarbageCan": 1},
    },
    "Bathroom": {
        **{"CounterTop": 1, "SinkBasin": 2, "Cabinet": 3, "Toilet": 1, "BathtubBasin": 1, "TowelHolder": 1},
        **{"HandTowelHolder": 1, "Shelf": 1, "GarbageCan": 1},
    },
}
"""Number of receptacles of each type."""
_APPLIANCE = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
"""Property of the target object, and the receptacle that changes it."""


@dataclass(frozen=True)
class Room:
    """A room with a goal."""

    task_type: str
    """One of `TASK_TYPES`."""
    receptacles: tuple[str, ...]
    """Type of each receptacle."""
    objects: tuple[tuple[str, int], ...]
    """Type of each object, and the number of the receptacle that holds it."""
    target: str
    """Type of the object that the goal names."""
    goal_receptacle: str
    """Type of the receptacle that the goal names; empty if it names none."""
    description: str
    """The goal in words."""


def generate_room(task_type: str, seed: int) -> Room:
    """Generate a room, deterministically from the arguments. Every goal can be reached."""
    rng = np.random.default_rng([TASK_TYPES.index(task_type), seed])
    name = _drawn(rng, sorted(constants.GOALS_VALID[task_type] & set(_ROOMS)))
    receptacles = tuple(kind for kind, count in _ROOMS[name].items() for _ in range(count))
    target, goal_receptacle = _drawn(rng, _possible_goals(task_type, receptacles))
    fixed = {goal_receptacle, _APPLIANCE.get(task_type, ("", ""))[1]}
    homes = [number for number, kind in enumerate(receptacles) if kind not in fixed and target in _contents(kind)]
    n_targets = 2 if task_type == "pick_two_obj_and_place" else 1
    objects = [(target, _drawn(rng, homes)) for _ in range(n_targets)]
    if task_type == "look_at_obj_in_light":
        tables = [number for number, kind in enumerate(receptacles) if kind in ("Desk", "SideTable", "Dresser")]
        objects.append((LAMP, _drawn(rng, tables)))
    while len(objects) < n_targets + N_FILLERS:
        number = int(rng.integers(len(receptacles)))
        kind = _drawn(rng, sorted(_contents(receptacles[number])))
        if kind != target:
            objects.append((kind, number))
    words = _drawn(rng, gdict[task_type]["templates"])
    text = words.format(obj=target.lower(), recep=goal_receptacle.lower(), toggle=LAMP.lower())
    return Room(task_type, receptacles, tuple(objects), target, goal_receptacle, text)


def problem(room: Room) -> str:
    """Return the room and its goal in PDDL."""
    goal = gdict[room.task_type]["pddl"].format(obj=room.target, recep=room.goal_receptacle, toggle=LAMP)
    # ALFWorld's goals write # for the dash of a type, and end with the parenthesis that closes the problem.
    return _PROBLEM.format(objects=_objects(room), facts=_facts(room), goal=goal.replace("#", "-"))


def _possible_goals(task_type: str, receptacles: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs (type of object, type of receptacle) such that the object can start in a third receptacle."""
    quality, appliance = _APPLIANCE.get(task_type, ("", ""))
    kinds = sorted(set(receptacles) - {appliance})
    possible = {kind for receptacle in kinds for kind in _contents(receptacle)}
    if quality:
        possible &= constants.VAL_ACTION_OBJECTS[quality]
    goals = [""] if task_type == "look_at_obj_in_light" else kinds
    return [
        (target, goal)
        for target in sorted(possible)
        for goal in goals
        if (not goal or target in _contents(goal)) and any(target in _contents(kind) for kind in kinds if kind != goal)
    ]


def _contents(receptacle: str) -> set[str]:
    kinds: set[str] = constants.VAL_RECEPTACLE_OBJECTS[receptacle]
    return {kind for kind in kinds if not kind.endswith("Sliced")}


def _objects(room: Room) -> str:
    kinds = sorted({kind for kind, _ in room.objects} | {"Knife", "ButterKnife"})
    lines = [f"{_receptacle(room, number)} - receptacle" for number in range(len(room.receptacles))]
    lines += [f"{_object(room, number)} - object" for number in range(len(room.objects))]
    lines += [f"{_location(number)} - location" for number in range(len(room.receptacles) + 1)]
    lines += [f"{kind}Type - otype" for kind in kinds]
    # The domain's actions name these types, also in rooms without such a receptacle.
    lines += [f"{kind}Type - rtype" for kind in sorted({*room.receptacles, "SinkBasin", "Microwave", "Fridge"})]
    return "\n        ".join(["agent1 - agent", *lines])


def _facts(room: Room) -> str:
    facts = [f"(atLocation agent1 {_location(len(room.receptacles))})"]
    kinds = sorted({kind for kind, _ in room.objects})
    for number, kind in enumerate(room.receptacles):
        name = _receptacle(room, number)
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {_location(number)})"]
        facts += [f"(openable {name})"] if kind in constants.OPENABLE_CLASS_SET else []
    for kind in sorted(set(room.receptacles)):
        facts += [f"(canContain {kind}Type {other}Type)" for other in kinds if other in _contents(kind)]
    for number, (kind, home) in enumerate(room.objects):
        name = _object(room, number)
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {_receptacle(room, home)})"]
        facts += [f"(objectAtLocation {name} {_location(home)})"]
        facts += [f"(toggleable {name})"] if kind == LAMP else [f"(pickupable {name})"]
        qualities = [quality for quality in ("Heatable", "Coolable", "Cleanable") if _has(kind, quality)]
        facts += [f"({quality.lower()} {name})" for quality in qualities]
    return "\n        ".join(facts)


def _has(kind: str, quality: str) -> bool:
    return kind in constants.VAL_ACTION_OBJECTS[quality]


def _receptacle(room: Room, number: int) -> str:
    kind = room.receptacles[number].lower()
    # ALFWorld reads the name from these ids: up to the first bar, and then "basin" if that is in the id.
    short = kind.removesuffix("basin")
    return f"{short}_bar_r{number:02}" + (f"_bar_{kind}" if short != kind else "")


def _object(room: Room, number: int) -> str:
    return f"{room.objects[number][0].lower()}_bar_o{number:02}"


def _location(number: int) -> str:
    return f"loc_bar_{number}"


def _drawn(rng: np.random.Generator, choices: Sequence[_T]) -> _T:
    return choices[int(rng.integers(len(choices)))]


_PROBLEM = """(define (problem generated)
    (:domain alfred)
    (:objects
        {objects}
    )
    (:init
        (= (total-cost) 0)
        {facts}
    )
{goal}"""
