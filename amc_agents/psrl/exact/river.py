"""The exact model of RiverSwim: a Dirichlet for each cave and tunnel, and a reward that is one of three numbers."""

from __future__ import annotations

import numpy as np

from amc_agents.envs.exploration import REWARDS, TUNNELS, plan, read_swum
from amc_agents.errors import ConfigurationError
from amc_agents.psrl.exact.model import Policy
from amc_agents.psrl.exact.priors import Dirichlet, Independent, UniformOver
from amc_agents.types import Step, Task, Trajectory


class TabularRiver:
    """Tabular PSRL's model, as in LLM-PSRL, section 5.2.2.

    Args:
        concentration: of every Dirichlet; None: 1 / number of caves.
    """

    def __init__(self, concentration: float | None = None) -> None:
        self._concentration = concentration

    def prior(self, task: Task) -> Independent:
        """For each cave and tunnel where it leads, and what it earns."""
        caves = [_CAVE.format(cave + 1) for cave in range(task.payload.n_caves)]
        leads = Dirichlet.even(caves, self._concentration or 1 / len(caves))
        earns = UniformOver(tuple(f"{reward:g}" for reward in REWARDS))
        ways = [(tunnel, cave) for cave in caves for tunnel in TUNNELS]
        return Independent({_LEADS.format(*way): leads for way in ways} | {_EARNS.format(*way): earns for way in ways})

    def updated(self, posterior: Independent, step: Step) -> Independent:
        """Count where it led; the reward is known from then on."""
        swum = read_swum(step.observation)
        if swum is None:
            return posterior
        way = swum.tunnel, _CAVE.format(swum.cave)
        after = posterior.observed(_LEADS.format(*way), _CAVE.format(swum.arrived))
        return after.observed(_EARNS.format(*way), f"{swum.reward:g}")

    def policy(self, task: Task, hypothesis: dict[str, dict[str, float] | str]) -> Policy:
        """Value iteration over the episode's horizon: the policy knows how many steps are left."""
        caves = [_CAVE.format(cave + 1) for cave in range(task.payload.n_caves)]
        transitions = [[_chances(hypothesis[_LEADS.format(one, cave)], caves) for one in TUNNELS] for cave in caves]
        rewards = [[float(str(hypothesis[_EARNS.format(one, cave)])) for one in TUNNELS] for cave in caves]
        best = plan(np.array(transitions), np.array(rewards), task.payload.horizon).q_values.argmax(axis=-1)
        return lambda trajectory: TUNNELS[best[len(trajectory.steps), _cave(trajectory)]]


def _chances(hypothesis: dict[str, float] | str, caves: list[str]) -> list[float]:
    if isinstance(hypothesis, str):
        raise ConfigurationError(f"expected the chances of the next caves, got {hypothesis!r}")
    return [hypothesis[cave] for cave in caves]


def _cave(trajectory: Trajectory) -> int:
    for step in reversed(trajectory.steps):
        if swum := read_swum(step.observation):
            return swum.arrived - 1
    return 0


_CAVE = "cave {}"
_LEADS = "tunnel {} in {} leads to"
_EARNS = "tunnel {} in {} earns"
