"""Critics between the planner's oracle and noise.

The oracle grades a state: 0 in a dead end or after a failure, 1 after a success, otherwise 1/2 plus half of the share
of all steps that can still be wasted. A level adds noise of standard deviation sigma to the grade, and rescales the sum
so that values of all levels are spread about as widely. The noise is a fixed function of the state, drawn anew for
every state (inherited = 0) or inherited in part from the state before (0.9): an error that a trajectory keeps for
about ten steps, so that weighing it again does not average it away.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.envs.crafting.tasks import plan
from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld
from amc_agents.envs.workshop import WorkshopTask, WorkshopWorld, solution_from
from amc_agents.types import FloatArray
from reproduce.dose.draws import Node

HORIZON = 20
SPREAD = 0.2
"""Standard deviation of pure noise, about that of the oracle's grades."""
KEPT = 0.9
"""Share of a state's noise that the next state inherits, per trajectory."""


@dataclass(frozen=True)
class Level:
    """A critic of the curve."""

    sigma: float
    """Of the noise, in grades; 0: the oracle, infinite: noise alone."""
    inherited: float = 0.0
    """Correlation of the noise of a state and the next one."""

    @property
    def name(self) -> str:
        """Names the critic by its noise."""
        if self.sigma == 0:
            return "oracle"
        kind = "trajectory" if self.inherited else "state"
        return f"noise-{kind}" if math.isinf(self.sigma) else f"{kind}-{self.sigma:g}"


class NoisyPlanner:
    """A critic of one task's states (`lockstep.Judge`).

    Args:
        level: how much noise.
        seed: of the noise.
    """

    def __init__(self, level: Level, seed: int) -> None:
        self._level, self._seed = level, seed
        self._grades: dict[Node, float] = {}
        self._noise: dict[Node, float] = {}

    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` grades with noise."""
        sigma = self._level.sigma
        if sigma == 0:
            return np.array([self._grade(node) for node in nodes])
        noise = np.array([self._error(node) for node in nodes])
        if math.isinf(sigma):
            return SPREAD * noise
        grades = np.array([self._grade(node) for node in nodes])
        return np.asarray((grades + sigma * noise) / math.hypot(1, sigma / SPREAD))

    def _grade(self, node: Node) -> float:
        if node not in self._grades:
            self._grades[node] = grade(node)
        return self._grades[node]

    def _error(self, node: Node) -> float:
        """A standard normal draw: a stationary first-order autoregression along the trajectory."""
        if node not in self._noise:
            own, kept = self._fresh(node), self._level.inherited
            if node.parent is not None and kept:
                own = kept * self._error(node.parent) + math.sqrt(1 - kept**2) * own
            self._noise[node] = own
        return self._noise[node]

    def _fresh(self, node: Node) -> float:
        at = zlib.crc32(np.array(node.dialogue, np.int32).tobytes())
        return float(np.random.default_rng([self._seed, at, len(node.dialogue)]).standard_normal())


def grade(node: Node) -> float:
    """Grade a state by the planner, in [0, 1]."""
    trajectory = node.trajectory
    if trajectory.done:
        return float(trajectory.return_ > 0)
    ahead = steps_ahead(node)
    slack = -1 if ahead is None else HORIZON - len(trajectory.steps) - ahead
    return 0.5 + 0.5 * slack / HORIZON if slack >= 0 else 0.0


def steps_ahead(node: Node) -> int | None:
    """Return the planner's number of steps to a success, or None in a dead end."""
    payload, world = node.trajectory.task.payload, node.world
    if isinstance(payload, WorkshopTask):
        assert isinstance(world, WorkshopWorld)
        best = solution_from(node.trajectory.task.payload, world)
        return None if best is None else best.n_steps
    assert isinstance(payload, CraftingTask)
    assert isinstance(world, CraftingWorld)
    actions = plan(payload.book, payload.goal, inventory=world.inventory)
    return None if actions is None else len(actions)
