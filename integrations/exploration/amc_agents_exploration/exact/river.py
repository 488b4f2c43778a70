"""The exact model of RiverSwim: for each cave and tunnel a Dirichlet and a reward among three values."""

from __future__ import annotations

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.posterior.priors import Dirichlet, Independent, UniformOver
from amc_agents.quoting import quoted
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.exact.model import Policy
from amc_agents_exploration.worlds import REWARDS, TUNNELS, plan, read_swum


class TabularRiver:
    """Model of tabular PSRL, as in LLM-PSRL, section 5.2.2.

    Args:
        concentration: parameter of every Dirichlet; None for 1 / number of caves.
    """

    def __init__(self, concentration: float | None = None) -> None:
        self._concentration = concentration

    def prior(self, task: Task) -> Independent:
        """Return the priors over destination and reward of each tunnel in each cave."""
        caves = [_CAVE.format(cave + 1) for cave in range(task.payload.n_caves)]
        leads = Dirichlet.even(caves, self._concentration or 1 / len(caves))
        earns = UniformOver(tuple(f"{reward:g}" for reward in REWARDS))
        ways = [(tunnel, cave) for cave in caves for tunnel in TUNNELS]
        return Independent({_LEADS.format(*way): leads for way in ways} | {_EARNS.format(*way): earns for way in ways})

    def updated(self, posterior: Independent, step: Step) -> Independent:
        """Count the destination; the reward is known after the first observation."""
        swum = read_swum(step.observation)
        if swum is None:
            return posterior
        way = swum.tunnel, _CAVE.format(swum.cave)
        after = posterior.observed(_LEADS.format(*way), _CAVE.format(swum.arrived))
        return after.observed(_EARNS.format(*way), f"{swum.reward:g}")

    def policy(self, task: Task, hypothesis: dict[str, dict[str, float] | str]) -> Policy:
        """Return the policy of value iteration over the episode's horizon, which depends on the remaining steps."""
        caves = [_CAVE.format(cave + 1) for cave in range(task.payload.n_caves)]
        transitions = [
            [_probabilities(hypothesis[_LEADS.format(tunnel, cave)], caves) for tunnel in TUNNELS] for cave in caves
        ]
        rewards = [[float(str(hypothesis[_EARNS.format(tunnel, cave)])) for tunnel in TUNNELS] for cave in caves]
        best = plan(np.array(transitions), np.array(rewards), task.payload.horizon).q_values.argmax(axis=-1)
        return lambda trajectory: TUNNELS[best[len(trajectory.steps), _cave(trajectory)]]


def _probabilities(hypothesis: dict[str, float] | str, caves: list[str]) -> list[float]:
    if isinstance(hypothesis, str):
        raise ConfigurationError(f"expected the probabilities of the next caves, got {quoted(hypothesis)}")
    return [hypothesis[cave] for cave in caves]


def _cave(trajectory: Trajectory) -> int:
    for step in reversed(trajectory.steps):
        if swum := read_swum(step.observation):
            return swum.arrived - 1
    return 0


_CAVE = "cave {}"
_LEADS = "tunnel {} in {} leads to"
_EARNS = "tunnel {} in {} earns"
