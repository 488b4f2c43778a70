"""The map of a generated game, and its source in Inform 6."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

MAX_SCORE = 10
"""Two points each for the sword, the key, the goblin and the crown, and two for bringing the crown home."""
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_NAMES = ("Hall", "Kitchen", "Chapel", "Cellar", "Armoury", "Gallery", "Stable", "Library", "Tower")
_STEP = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


@dataclass(frozen=True)
class Layout:
    """Rooms on a grid. The game starts in the room 0; the last room, the vault, is behind a locked gate."""

    names: tuple[str, ...]
    """Name of each room."""
    exits: tuple[dict[str, int], ...]
    """Direction -> room, of each room; the gate is an exit like any other."""
    sword: int
    """Room of the sword."""
    key: int
    """Room of the key."""

    @property
    def vault(self) -> int:
        """The room of the goblin and the crown."""
        return len(self.names) - 1

    def way(self, start: int, goal: int) -> str:
        """Return the first direction on the shortest way; the rooms must differ."""
        first: dict[int, str] = {}
        queue = deque([start])
        while queue:
            room = queue.popleft()
            for direction, neighbour in self.exits[room].items():
                if neighbour != start and neighbour not in first:
                    first[neighbour] = first.get(room, direction)
                    queue.append(neighbour)
        return first[goal]


def generate_layout(seed: int, n_rooms: int = 8) -> Layout:
    """Generate a map of 5 to 9 rooms, deterministically from the seed."""
    rng = np.random.default_rng(seed)
    places: dict[tuple[int, int], int] = {(0, 0): 0}
    exits: list[dict[str, int]] = [{}]
    while len(exits) < n_rooms:
        place = list(places)[int(rng.integers(len(places)))]
        direction = list(_STEP)[int(rng.integers(4))]
        neighbour = (place[0] + _STEP[direction][0], place[1] + _STEP[direction][1])
        if neighbour not in places:
            places[neighbour] = len(exits)
            exits.append({OPPOSITE[direction]: places[place]})
            exits[places[place]][direction] = places[neighbour]
    # A leaf of the tree of rooms is the vault, so that the gate closes off nothing else.
    names = ("Hall", *(_NAMES[1 + int(number)] for number in rng.permutation(len(_NAMES) - 1)[: n_rooms - 2]), "Vault")
    sword, key = (int(room) for room in rng.choice(np.arange(1, n_rooms - 1), size=2, replace=False))
    return Layout(names, tuple(exits), sword, key)


def source(layout: Layout) -> str:
    """Return the game in Inform 6."""
    rooms = "\n".join(_room(layout, number) for number in range(len(layout.names)))
    objects = {"sword": f"Room{layout.sword}", "key": f"Room{layout.key}", "vault": f"Room{layout.vault}"}
    return _GAME.format(max_score=MAX_SCORE, rooms=rooms, **objects)


def _room(layout: Layout, number: int) -> str:
    listed = ", ".join(layout.exits[number])
    exits = "".join(
        f"\n        {_EXITS[direction]} {_way(layout, to)}," for direction, to in layout.exits[number].items()
    )
    words = f'"You are in the {layout.names[number].lower()}. There are exits: {listed}."'
    return f'Object Room{number} "{layout.names[number]}"\n    with description {words},{exits}\n    has light;'


def _way(layout: Layout, room: int) -> str:
    if room != layout.vault:
        return f"Room{room}"
    return f'[; if (iron_key in player) return Room{room}; print "The gate is locked.^"; rtrue; ]'


_EXITS = {"north": "n_to", "south": "s_to", "east": "e_to", "west": "w_to"}
_GAME = """
Constant Story "THE KEEP";
Constant Headline "^A generated adventure.^";
Serial "260101";
Constant MAX_SCORE = {max_score};
Include "Parser";
Include "VerbLib";
Global wounds = 0;
{rooms}
Object sword "sword" {sword}
    with name 'sword', description "A short sword.",
    after [; Take: if (self hasnt general) {{ give self general; score = score + 2; }} ];
Object iron_key "iron key" {key}
    with name 'iron' 'key', description "The key of a gate.",
    after [; Take: if (self hasnt general) {{ give self general; score = score + 2; }} ];
Object goblin "goblin" {vault}
    with name 'goblin', description "It guards the crown.",
    life [;
      Attack:
        if (sword in player && random(2) == 1) {{
            remove self; score = score + 2;
            "You strike the goblin down.";
        }}
        wounds++;
        if (wounds == 3) {{ deadflag = 1; "The goblin strikes you down."; }}
        "The goblin dodges, and wounds you.";
    ],
    has animate;
Object crown "crown" {vault}
    with name 'crown', description "A crown of gold.",
    before [; Take: if (goblin in parent(self)) "The goblin does not let you."; ],
    after [; Take: if (self hasnt general) {{ give self general; score = score + 2; }} ];
Object homecoming "homecoming" with daemon [;
    if (crown in player && location == Room0) {{ score = score + 2; deadflag = 2; }}
];
[ Initialise; location = Room0; StartDaemon(homecoming);
  "^Find the crown in the vault, and bring it back to the hall. A gate and a goblin are in your way."; ];
Include "Grammar";
"""
