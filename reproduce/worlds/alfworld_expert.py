"""A searching expert of ALFWorld's generated rooms, with errors at a rate drawn per dialogue.

Unlike the engine's planner, it knows only what it has seen: it goes from receptacle to receptacle until the target
appears. The small policy is trained on its dialogues.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from amc_agents_alfworld import Room, generate_room
from amc_agents_alfworld.tasks import SEEDS_PER_SPLIT, SPLITS
from amc_agents_alfworld.world import HORIZON, AlfworldWorld

from amc_agents.types import Task

LIKELY = 4.0
"""How much more often a receptacle that can contain the target is searched next."""
APPLIANCES = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}
LOOK, TWO = "look_at_obj_in_light", "pick_two_obj_and_place"
_SEEN = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_THING = re.compile(r"an? ([a-z]+ \d+)")


def room_of(task: Task) -> Room:
    """Return the generated room of a task."""
    _, split, task_type, number = task.id.split("/")
    return generate_room(task_type, SPLITS.index(split) * SEEDS_PER_SPLIT + int(number))


@dataclass
class SearchingExpert:
    """The expert in a dialogue."""

    room: Room
    receptacles: tuple[str, ...]
    """Names, such as `drawer 2`."""
    likely: frozenset[str]
    """Kinds of receptacles that can contain the target."""
    rng: np.random.Generator
    error_rate: float
    place: str = ""
    closed: bool = False
    """The receptacle at the current place is closed."""
    held: str = ""
    source: str = ""
    """Where the held object was taken."""
    ready: set[str] = field(default_factory=set)
    """Objects that are clean, hot or cool, as the task wants."""
    seen: dict[str, str] = field(default_factory=dict)
    """Object -> the receptacle that contains it."""
    checked: set[str] = field(default_factory=set)
    last: str = ""

    def turn(self, random_action: str) -> str:
        """Choose the next message; a random admissible action is given for errors."""
        thought, action = self._move()
        if self.rng.random() < self.error_rate:
            wrong = [random_action, f"go to {self._drawn(self.receptacles)}", self.last or random_action]
            action = wrong[int(self.rng.integers(len(wrong)))]
        self.last = action
        return f"Thought: {thought}\nAction: {action}"

    def observe(self, answer: str) -> None:
        """Learn from the world's answer to the last action."""
        words = self.last.split()
        if answer.startswith("Nothing happens") or len(words) < 2:
            return
        name = " ".join(words[1:3])
        if words[0] == "go":
            self.place = " ".join(words[2:4])
        elif words[0] == "take":
            self.held, self.source = name, self.seen.pop(name, self.place)
        elif words[0] == "move":
            self.held, self.seen[name] = "", self.place
        elif words[0] in ("clean", "heat", "cool"):
            self.ready = self.ready | {name} if APPLIANCES.get(self.room.task_type, ("",))[0] == words[0] else set()
        self._look(answer)

    def _look(self, answer: str) -> None:
        if answer.startswith("You close") or ((match := _CLOSED.search(answer)) and match[1] == self.place):
            self.closed = True
        elif self.last.startswith(("go to", "open")):
            self.closed = False
        for match in _SEEN.finditer(answer):
            receptacle = match[1] or match[2]
            self.checked.add(receptacle)
            self.seen = {thing: where for thing, where in self.seen.items() if where != receptacle}
            self.seen |= dict.fromkeys(_THING.findall(match[3]), receptacle)

    def _move(self) -> tuple[str, str]:
        """Return the sub-goal in words, and the next action for it."""
        target = self.room.target.lower()
        if self.held and self.held.split()[0] != target:
            return f"put {self.held} back", self._at(self.source, f"move {self.held} to {self.source}")
        if self.held:
            return self._use()
        wanted = [thing for thing, where in self.seen.items() if thing.split()[0] == target and not self._done(where)]
        if self.room.task_type == LOOK and not wanted:
            return self._search(target)
        if wanted:
            thing = wanted[0]
            return f"take {thing}", self._at(self.seen[thing], f"take {thing} from {self.seen[thing]}")
        return self._search(target)

    def _done(self, where: str) -> bool:
        # A single object at the goal is not as the task wants it, or the episode would be over.
        return self.room.task_type == TWO and where.split()[0] == self.room.goal_receptacle.lower()

    def _use(self) -> tuple[str, str]:
        verb, appliance = APPLIANCES.get(self.room.task_type, ("", ""))
        if verb and self.held not in self.ready:
            name = self._first(appliance)
            action = f"{verb} {self.held} with {name}"
            return f"{verb} {self.held}", action if self.place == name else f"go to {name}"
        if self.room.task_type == LOOK:
            lamps = [(thing, where) for thing, where in self.seen.items() if thing.startswith("desklamp")]
            if not lamps:
                return self._search("desklamp")
            lamp, where = lamps[0]
            return f"use {lamp}", self._at(where, f"use {lamp}")
        goal = self._goal()
        return f"put {self.held} in {goal.split()[0]}", self._at(goal, f"move {self.held} to {goal}")

    def _goal(self) -> str:
        """Return the receptacle of the goal; for two objects, the one that has the first."""
        kind, target = self.room.goal_receptacle.lower(), self.room.target.lower()
        begun = [where for thing, where in self.seen.items() if thing.split()[0] == target and self._done(where)]
        return begun[0] if begun else self._first(kind)

    def _first(self, kind: str) -> str:
        return f"{kind} 1"

    def _search(self, wanted: str) -> tuple[str, str]:
        thought = f"find {wanted}"
        if self.place and self.closed and self.place not in self.checked:
            return thought, f"open {self.place}"
        left = [name for name in self.receptacles if name not in self.checked]
        if not left:
            self.checked.clear()
            left = list(self.receptacles)
        weights = np.array([LIKELY if name.split()[0] in self.likely else 1.0 for name in left])
        return thought, f"go to {left[int(self.rng.choice(len(left), p=weights / weights.sum()))]}"

    def _at(self, place: str, action: str) -> str:
        if self.place != place:
            return f"go to {place}"
        return f"open {place}" if self.closed and not action.startswith(("clean", "heat", "cool")) else action

    def _drawn(self, names: tuple[str, ...]) -> str:
        return names[int(self.rng.integers(len(names)))]


def expert_of(task: Task, rng: np.random.Generator, error_rate: float) -> SearchingExpert:
    """Return an expert for a task, which has read the instruction."""
    room = room_of(task)
    names = tuple(_THING.findall(task.instruction.partition("\n")[0]))
    return SearchingExpert(room, names, frozenset(likely_places(room.target)), rng, error_rate)


def likely_places(target: str) -> set[str]:
    """Return the kinds of receptacles that can contain a kind of object."""
    from alfworld.gen import constants

    contents = constants.VAL_RECEPTACLE_OBJECTS
    return {kind.lower() for kind, things in contents.items() if target in things}


async def play(
    task: Task, rng: np.random.Generator, error_rate: float, horizon: int = HORIZON
) -> list[tuple[str, str]]:
    """Play a dialogue of at most `horizon` steps: [(expert's message, world's answer), ...]."""
    world = AlfworldWorld()
    await world.reset(task)
    expert, rounds = expert_of(task, rng, error_rate), []
    for _ in range(horizon):
        message = expert.turn(_careless_action(world, rng))
        answer = await world.step(expert.last)
        expert.observe(answer.observation)
        rounds.append((message, answer.observation))
        if answer.done:
            break
    await world.close()
    return rounds


def _careless_action(world: AlfworldWorld, rng: np.random.Generator) -> str:
    actions = (world.random_action(rng) for _ in iter(int, 1))
    return next(action for action in actions if action != "help")
