"""The expert: BabyAI's own bot, with mistakes at a chosen rate.

The small policy is trained on its noisy play. A mistake can last for several steps and change the room, so that the
policy learns to continue failing after a failure, as language models do.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from minigrid.core.actions import Actions
from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core.verifier import ActionInstr
from minigrid.minigrid_env import MiniGridEnv
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError, GoNextToSubgoal

from amc_agents_minigrid.view import carried, name_of, things
from amc_agents_minigrid.world import ACTIONS

Mistake = Literal["slip", "stubborn", "other thing"]
"""One wrong action; the same wrong action repeatedly; fetching another object."""

_NAMES = {action: name for name, action in ACTIONS.items()}
_LIKELY_SLIPS = ("turn left", "turn right", "go forward", "go forward", "pick up")
_STEPS_AT_MOST = 12
"""Maximum length of a mistake; most are much shorter."""
_SEARCHES_AT_MOST = 100
"""Limit on path searches in one step; a successful plan needs a few."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The expert's thought and action."""

    thought: str
    """The target and its position: `I see a green key 2 steps left`; empty for missions of several parts."""
    action: str
    mistaken: bool
    """True for a deliberate mistake."""


class _GaveUp(Exception):
    """Raised if the bot has no plan; internal to this module."""


class _Bot(BabyAIBot):
    """The bot, with a limit on planning, which otherwise never ends with a wrong object in hand and no free path."""

    def advice(self, last: Actions | None) -> Actions:
        """The next action.

        Raises:
            _GaveUp: the bot failed, for example because its target was in a box that was opened.
        """
        self._searches_before = self.bfs_counter
        try:
            return Actions(self.replan(last))
        except (AssertionError, DisappearedBoxError) as error:
            raise _GaveUp from error

    def _breadth_first_search(self, *arguments: Any, **options: Any) -> Any:
        if self.bfs_counter - self._searches_before > _SEARCHES_AT_MOST:
            raise _GaveUp
        return super()._breadth_first_search(*arguments, **options)


class Expert:
    """Plays one episode. Each action must be executed before the next call of `turn`.

    Args:
        level: `BabyAIWorld.level`, in any state.
        error_rate: probability that a mistake begins at a step.
        rng: random generator for the mistakes; required if the rate is not 0.
    """

    def __init__(self, level: MiniGridEnv, error_rate: float = 0.0, rng: np.random.Generator | None = None) -> None:
        if error_rate and rng is None:
            raise ValueError(f"expected an rng for the error_rate {error_rate}, got None")
        self._level, self._error_rate = level, error_rate
        self._rng = rng if rng is not None else np.random.default_rng(0)
        self._bot: _Bot | None = None
        self._making_room = False
        self._last: Actions | None = None
        self._mistake: Mistake | None = None
        self._steps_left = 0
        self._wrong_action = ""
        self._wrong_thing: WorldObj | None = None

    def turn(self) -> Turn:
        """The next thought and action."""
        advice = self._advice()
        if self._mistake is None and self._rng.random() < self._error_rate:
            self._begin_mistake(advice)
        mistaken = self._mistake is not None
        aim = self._wrong_thing
        action = self._wrong(advice) if mistaken else advice
        self._last = ACTIONS[action]
        return Turn(self._thought(aim), action, mistaken)

    def _advice(self) -> str:
        self._making_room = self._making_room and self._level.carrying is not None
        if self._making_room:
            return self._make_room()
        # A new bot would undo the last action if it were given one.
        last = None if self._bot is None else self._last
        self._bot = self._bot or _Bot(self._level)
        try:
            return _NAMES.get(self._bot.advice(last), "turn left")
        except _GaveUp:
            # Start a new plan with free hands.
            self._bot, self._making_room = None, True
            return self._make_room()

    def _make_room(self) -> str:
        level = self._level
        return "drop" if level.carrying is not None and level.grid.get(*level.front_pos) is None else "turn left"

    def _begin_mistake(self, advice: str) -> None:
        kinds: list[Mistake] = ["slip", "stubborn", "other thing"]
        self._mistake = kinds[int(self._rng.choice(3, p=(0.4, 0.25, 0.35)))]
        self._steps_left = min(int(self._rng.geometric(0.3)) + 1, _STEPS_AT_MOST)
        if self._mistake == "other thing":
            self._wrong_thing = self._another_thing()
            self._steps_left = _STEPS_AT_MOST
        if self._wrong_thing is None:
            wrong = [name for name in _LIKELY_SLIPS if name != advice]
            self._wrong_action = wrong[int(self._rng.integers(len(wrong)))]
            if self._mistake != "stubborn":
                self._steps_left = 1

    def _wrong(self, advice: str) -> str:
        self._steps_left -= 1
        action = self._wrong_action if self._wrong_thing is None else self._towards(self._wrong_thing)
        if self._steps_left <= 0 or action == "pick up":
            self._mistake, self._wrong_thing = None, None
        return action

    def _towards(self, thing: WorldObj) -> str:
        """A step towards another object, or picking it up on arrival."""
        guide = _Bot(self._level)
        guide.stack = [GoNextToSubgoal(guide, thing.cur_pos)]
        try:
            return _NAMES.get(guide.advice(None), "pick up")
        except _GaveUp:
            return "turn right"

    def _another_thing(self) -> WorldObj | None:
        """A visible object that is not the mission's target; None if there is none."""
        level = self._level
        wanted = {id(thing) for thing in self._wanted()}
        others = []
        for sighting in things(level):
            column, row = level.agent_pos + sighting.right * level.right_vec + sighting.forward * level.dir_vec
            thing = level.grid.get(int(column), int(row))
            if thing is not None and id(thing) not in wanted and thing.can_pickup():
                others.append(thing)
        return others[int(self._rng.integers(len(others)))] if others else None

    def _wanted(self) -> list[Any]:
        mission = getattr(self._level, "instrs", None)
        return list(mission.desc.obj_set) if isinstance(mission, ActionInstr) and hasattr(mission, "desc") else []

    def _thought(self, aim: WorldObj | None) -> str:
        wanted = self._wanted() if aim is None else [aim]
        if not wanted:
            return ""
        names = [name_of(thing) for thing in wanted]
        if held := [name for name in carried(self._level) if name not in names]:
            return f"I carry a {held[0]}"
        visible = [sighting for sighting in things(self._level) if sighting.name in names]
        if not visible:
            return f"I see no {names[0]}"
        nearest = min(visible, key=lambda sighting: abs(sighting.right) + sighting.forward)
        return f"I see a {nearest.name} {nearest.place}"
