"""Two of Gymnasium's own environments as text worlds: Blackjack, and FrozenLake on random maps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from amc_agents_gymnasium.interface import Env, TextInterface
from amc_agents_gymnasium.spec import gymnasium_world

_HAND = "Your cards sum to {}{}. The dealer shows {}."
_LEGEND = "S start, F ice, H hole, G goal; your cell is in brackets."


class RandomLake(FrozenLakeEnv):
    """FrozenLake whose map is drawn at each reset, from the seed of the reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Draw a map that has a path to the goal, and start on it."""
        super().__init__(desc=generate_random_map(size=4, seed=seed), is_slippery=True)
        observation, info = super().reset(seed=seed, options=options)
        return int(observation), info


def lake_text(observation: int, info: Mapping[str, Any], env: Env) -> str:
    """Draw the map, with the agent's cell in brackets."""
    cells = [[cell.decode() for cell in row] for row in env.unwrapped.desc]  # type: ignore[attr-defined]
    row, column = divmod(int(observation), len(cells[0]))
    cells[row][column] = f"[{cells[row][column]}]"
    return "\n".join("".join(f"{cell:^3}" for cell in line).rstrip() for line in cells)


def hand_text(observation: tuple[int, int, int], info: Mapping[str, Any], env: Env) -> str:
    """Format the player's sum, whether an ace counts as 11, and the dealer's card."""
    total, dealer, ace = observation
    return _HAND.format(total, ", with an ace that counts as 11" if ace else "", "an ace" if dealer == 1 else dealer)


BLACKJACK = gymnasium_world(
    "gymnasium-blackjack",
    TextInterface(
        partial(gymnasium.make, "Blackjack-v1"),
        action={"stick": 0, "hit": 1},
        observation=hand_text,
        rules="Blackjack. Actions: hit, stick.\nGoal: get closer to 21 than the dealer, and not above it.",
    ),
    horizon=12,
)
"""The entry point `gymnasium-blackjack`: reward 1, 0 or -1."""
FROZEN_LAKE = gymnasium_world(
    "gymnasium-frozen-lake",
    TextInterface(
        RandomLake,
        action={"left": 0, "down": 1, "right": 2, "up": 3},
        observation=lake_text,
        rules="Cross the frozen lake. Actions: left, down, right, up. On ice you may slip to the side.\n" + _LEGEND,
    ),
    horizon=30,
)
"""The entry point `gymnasium-frozen-lake`: reward 1 on the goal."""
