"""An expert for the generated games, which recovers from errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from amc_agents_jericho.keep.layout import Layout
from amc_agents_jericho.world import History


@dataclass
class _Position:
    """What the answers of the game say about its state."""

    room: int = 0
    things: set[str] = field(default_factory=set)
    """What the player carries."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Room of each thing that was dropped."""
    goblin: bool = True
    """True while the goblin lives."""


@dataclass(frozen=True)
class KeepExpert:
    """Chooses the next command from the map and the game's answers. It loses only by bad luck against the goblin."""

    layout: Layout

    def __call__(self, history: History) -> str:
        """Return the next command."""
        at = self._position(history)
        for thing, room in (("sword", self.layout.sword), ("key", self.layout.key)):
            if thing not in at.things and (thing == "key" or at.goblin):
                return self._take(thing, at, room)
        if "crown" in at.things:
            return self.layout.way(at.room, 0)
        if at.room == self.layout.vault and at.goblin:
            return "attack goblin"
        return self._take("crown", at, self.layout.vault)

    def _take(self, thing: str, at: _Position, home: int) -> str:
        room = at.dropped.get(thing, home)
        return f"take {thing}" if room == at.room else self.layout.way(at.room, room)

    def _position(self, history: Iterable[tuple[str, str]]) -> _Position:
        at = _Position()
        for command, answer in history:
            verb, _, thing = command.partition(" ")
            if verb in self.layout.exits[at.room]:
                to = self.layout.exits[at.room][verb]
                at.room = to if answer.startswith(self.layout.names[to]) else at.room
            elif verb == "take" and answer.startswith("Taken"):
                at.things.add(thing)
            elif verb == "drop" and answer.startswith("Dropped"):
                at.things.discard(thing)
                at.dropped[thing] = at.room
            elif "strike the goblin down" in answer:
                at.goblin = False
        return at
