"""The levels: those that MiniGrid registers (96 of BabyAI), and one that it lacks."""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers its levels)
from minigrid.envs.babyai.core import roomgrid_level
from minigrid.envs.babyai.core.verifier import PickupInstr
from minigrid.envs.babyai.goto import GoToLocal
from minigrid.minigrid_env import MiniGridEnv

from amc_agents.errors import ConfigurationError

GO_TO_LOCAL = "BabyAI-GoToLocal-v0"
"""One room with eight things; go to one of them (the LAC paper's `go to`)."""
PICKUP_LOCAL = "amc-agents/PickupLocal-v0"
"""The same rooms; pick one thing up (the paper's `pick up`)."""

_log = logging.getLogger(__name__)


class PickupLocal(GoToLocal):
    """The rooms and things of `GoToLocal`, with the mission to pick the thing up."""

    def gen_mission(self) -> None:
        """Draw a room and a mission as the parent does, and change the verb."""
        super().gen_mission()
        self.instrs = PickupInstr(self.instrs.desc)  # type: ignore[assignment]


def make_level(name: str, seed: int, max_steps: int) -> MiniGridEnv:
    """A level in its first state.

    Args:
        name: its id in Gymnasium's registry, such as `BabyAI-GoToLocal-v0`.
        seed: draws room, things and mission.
        max_steps: where it is cut short; also the scale of its reward.

    Raises:
        ConfigurationError: no such level.
    """
    try:
        level = gymnasium.make(name, disable_env_checker=True, max_steps=max_steps).unwrapped
    except (gymnasium.error.Error, TypeError) as error:
        raise ConfigurationError(
            f"expected the name of a MiniGrid level such as {GO_TO_LOCAL} or {PICKUP_LOCAL}, got {name!r}: {error}"
        ) from error
    if not isinstance(level, MiniGridEnv):
        raise ConfigurationError(f"{name!r} is a {type(level).__name__}, expected a MiniGrid level")
    level.reset(seed=seed)
    return level


def _log_instead(*words: Any) -> None:
    _log.debug(" ".join(map(str, words)))


# MiniGrid tells of every room that it draws again by print, which would end up in the output of a run.
vars(roomgrid_level)["print"] = _log_instead
gymnasium.register(PICKUP_LOCAL, entry_point=f"{__name__}:PickupLocal")
