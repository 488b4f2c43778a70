"""LLM-IDS: information-directed sampling with estimates by language models (section 6.2.2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from amc_agents.errors import DecisionError
from amc_agents.psrl.estimates import Estimates, Estimator
from amc_agents.psrl.experience import experience
from amc_agents.psrl.information_ratio import least_information_ratio
from amc_agents.types import Trajectory

KnownEstimates = OrderedDict[tuple[Any, ...], Estimates]
"""Cache of estimates, keyed by posterior and state."""
MOST_CACHED = 1000
"""Maximum number of cached estimates."""


@dataclass(frozen=True)
class IdsDecision:
    """A decision with its estimates, for `A` actions."""

    action: str
    """The action drawn."""
    actions: tuple[str, ...]
    """`[A]` the possible actions."""
    regrets: tuple[float, ...]
    """`[A]` expected regret."""
    gains: tuple[float, ...]
    """`[A]` expected information in bits."""
    probabilities: tuple[float, ...]
    """`[A]` distribution of the draw; at most two are positive."""
    ratio: float
    """Squared expected regret per bit; inf if some regret is expected but no information."""
    cached: bool
    """True if the estimates came from the cache."""

    def as_plain(self) -> dict[str, Any]:
        """Return a dictionary of plain values, for events and traces."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


class InformationDirectedChoice:
    """Draws actions from the distribution with the least information ratio.

    At most two actions have positive probability. If actions without regret exist, the most informative of them is
    taken. If no action is informative, the action with the least regret is taken.

    Args:
        estimator: estimates regret and information, once per state and posterior.
        known: cache of its estimates; None for a cache of its own.
    """

    def __init__(self, estimator: Estimator, known: KnownEstimates | None = None) -> None:
        self._estimator, self._known = estimator, OrderedDict() if known is None else known

    async def choose(
        self, world: str, posterior: str, trajectory: Trajectory, actions: Sequence[str], rng: np.random.Generator
    ) -> IdsDecision:
        """Draw an action.

        Args:
            world: the rules of the world.
            posterior: the posterior's text.
            trajectory: the steps that led to the current state.
            actions: `[A]` the possible actions.
            rng: generator for the draw.

        Raises:
            RoleError: an estimate failed.
            DecisionError: `actions` is empty or has a duplicate.
        """
        listed = tuple(actions)
        if not listed or len(set(listed)) < len(listed):
            raise DecisionError(f"expected different actions to choose from, got {list(listed)}")
        state = (world, posterior, trajectory.task.instruction, experience(trajectory.steps), listed)
        estimates = self._known.get(state)
        cached = estimates is not None
        if estimates is None:
            estimates = self._known[state] = await self._estimator.estimates(world, posterior, trajectory, listed)
            if len(self._known) > MOST_CACHED:
                self._known.popitem(last=False)
        regrets, gains = estimates
        best = least_information_ratio(regrets, gains)
        drawn = int(rng.choice(len(listed), p=best.probabilities))
        return IdsDecision(
            action=listed[drawn],
            actions=listed,
            regrets=tuple(regrets.tolist()),
            gains=tuple(gains.tolist()),
            probabilities=tuple(best.probabilities.tolist()),
            ratio=best.ratio,
            cached=cached,
        )
