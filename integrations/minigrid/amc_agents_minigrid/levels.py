"""Create levels: those that MiniGrid registers (96 of BabyAI), and `PickupLocal`."""

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
"""One room with eight objects; go to one of them (`go to` in the LAC paper)."""
PICKUP_LOCAL = "amc-agents/PickupLocal-v0"
"""The same rooms; pick up one object (`pick up` in the paper)."""

_log = logging.getLogger(__name__)


class PickupLocal(GoToLocal):
    """The rooms and objects of `GoToLocal`, with the mission to pick up the object."""

    def gen_mission(self) -> None:
        """Generate the room and mission of the parent class, and change the verb."""
        super().gen_mission()
        self.instrs = PickupInstr(self.instrs.desc)  # type: ignore[assignment]


def make_level(name: str, seed: int, max_steps: int) -> MiniGridEnv:
    """Create a level in its initial state.

    Args:
        name: the level's id in Gymnasium's registry, such as `BabyAI-GoToLocal-v0`.
        seed: seed of the room, the objects and the mission.
        max_steps: step limit, which also scales the reward.

    Raises:
        ConfigurationError: the level does not exist.
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


def _log_instead_of_print(*words: Any) -> None:
    _log.debug(" ".join(map(str, words)))


# MiniGrid prints a line for every room that it rejects, which would appear in the output of a run.
vars(roomgrid_level)["print"] = _log_instead_of_print
gymnasium.register(PICKUP_LOCAL, entry_point=f"{__name__}:PickupLocal")
