"""RiverSwim (LLM-PSRL, section 5.2.2): a chain of caves with the large reward at the upstream end.

Internally, states and actions are indices: state 0 is the start, action 0 goes with the current, action 1 against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from amc_agents.types import FloatArray, Task, TimeStep, Trajectory
from amc_agents_exploration.worlds.planning import Plan, plan
from amc_agents_exploration.worlds.world import Instance, drawn_seed, task_rng

REWARDS = (0.0, 0.005, 1.0)
"""All possible rewards."""
TUNNELS = ("A", "B")
"""Names of the two tunnels. The upstream tunnel is drawn for each instance."""
_SWUM = re.compile(
    r"You took tunnel ([AB]) in cave (\d+), earned (0|0\.005|1) and are now in cave (\d+)\..*", re.DOTALL
)


class Swum(NamedTuple):
    """A parsed observation."""

    cave: int
    """Cave where the step began, from 1."""
    tunnel: str
    reward: float
    arrived: int
    """Cave where the step ended, from 1."""


class _State(NamedTuple):
    cave: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class RiverSwim(Instance):
    """A river of `n_caves` caves with episodes of `horizon` steps."""

    n_caves: int
    horizon: int
    upstream: str
    """Name of the upstream tunnel in every cave."""

    @property
    def optimal_value(self) -> float:
        """V*(s_1) by value iteration."""
        return float(self.plan.values[0, 0])

    @property
    def plan(self) -> Plan:
        """V*_h(s) and Q*_h(s, a), with the actions in the order (downstream, upstream)."""
        return _plan(self.n_caves, self.horizon)

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the tunnels."""
        return TUNNELS

    def start(self) -> _State:
        """Return the state in the first cave."""
        return _State(0, 0)

    def advance(self, state: _State, action: str, rng: np.random.Generator) -> tuple[_State, TimeStep]:
        """Swim through a tunnel. The last step ends the episode."""
        reward, cave = 0.0, state.cave
        if action.upper() in TUNNELS:
            move = int(action.upper() == self.upstream)
            transitions, rewards = dynamics(self.n_caves)
            reward = float(rewards[state.cave, move])
            cave = int(np.searchsorted(np.cumsum(transitions[state.cave, move]), rng.random(), side="right"))
            cave = min(cave, self.n_caves - 1)  # The probabilities may sum to slightly less than 1.
            text = f"You took tunnel {action.upper()} in cave {state.cave + 1}, earned {reward:g} "
            text += f"and are now in cave {cave + 1}."
        else:
            text = f"That is no tunnel: the step is lost, and you are still in cave {cave + 1}."
        after = _State(cave, state.steps + 1)
        if after.steps < self.horizon:
            return after, TimeStep.transition(text, reward)
        return after, TimeStep.termination(f"{text} The episode is over.", reward)

    def regret(self, trajectory: Trajectory) -> float:
        """Return the sum of V*_h(s_h) - Q*_h(s_h, a_h). A lost step counts V*_h(s_h) - V*_h+1(s_h)."""
        values, q_values = self.plan
        lost, cave = 0.0, 0
        for h, step in enumerate(trajectory.steps):
            swum = read_swum(step.observation)
            if swum is None:
                lost += values[h, cave] - values[h + 1, cave]
                continue
            lost += values[h, cave] - q_values[h, cave, int(swum.tunnel == self.upstream)]
            cave = swum.arrived - 1
        return float(lost)


class Dynamics(NamedTuple):
    """Dynamics of a tabular world with `S` caves and `A` = 2 actions."""

    transitions: FloatArray
    """`[S, A, S]` transition probabilities."""
    rewards: FloatArray
    """`[S, A]` rewards."""


@cache
def dynamics(n_caves: int) -> Dynamics:
    """Return the dynamics of the river, as in LLM-PSRL."""
    transitions = np.zeros((n_caves, 2, n_caves))
    last = n_caves - 1
    for cave in range(n_caves):
        transitions[cave, 0, max(cave - 1, 0)] = 1.0
    for cave in range(1, last):
        transitions[cave, 1, cave - 1 : cave + 2] = (0.05, 0.60, 0.35)
    transitions[0, 1, :2] = (0.40, 0.60)
    transitions[last, 1, last - 1 :] = (0.40, 0.60)
    rewards = np.zeros((n_caves, 2))
    rewards[0, 0], rewards[last, 1] = 0.005, 1.0
    transitions.setflags(write=False)
    rewards.setflags(write=False)
    return Dynamics(transitions, rewards)


@cache
def _plan(n_caves: int, horizon: int) -> Plan:
    return plan(*dynamics(n_caves), horizon)


def riverswim_task(seed: int, split: str = "train", *, n_caves: int = 3, horizon: int = 6) -> Task:
    """Create a river. The upstream tunnel is drawn, so that the names of the tunnels carry no information."""
    rng = task_rng(split, seed)
    upstream = TUNNELS[int(rng.integers(2))]
    instance = RiverSwim(n_caves=n_caves, horizon=horizon, upstream=upstream, seed=drawn_seed(rng))
    name = "riverswim" if n_caves == 3 else f"riverswim-{n_caves}"
    return Task(f"{name}/{split}/{seed}", _RULES.format(n_caves=n_caves, horizon=horizon), instance)


def read_swum(observation: str) -> Swum | None:
    """Parse an observation; None for a lost step."""
    match = _SWUM.fullmatch(observation)
    return Swum(int(match[2]), match[1], float(match[3]), int(match[4])) if match else None


_RULES = """\
You swim in a network of {n_caves} underwater caves, numbered 1 to {n_caves}. From every cave lead two tunnels, A \
and B. There are currents: a tunnel may lead to another cave, back to the one that you are in, or to different caves \
at different times, with fixed chances that nobody tells you. To have come through once does not mean that you \
always will, and to have failed once does not mean that you never will. Taking a certain tunnel in a certain cave \
earns a fixed reward of 0, 0.005 or 1, wherever it leads.
An episode has {horizon} steps and begins in cave 1. The same caves come again in the next. Earn as much as you can \
over all episodes.
An action is A or B. Anything else loses the step.
You are in cave 1."""
