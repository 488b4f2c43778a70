"""The targets of a value model at the states of trajectories.

Notation (AMC, section 2.3): G_t = r_{t+1} + ... + r_T is the return still to come at s_t, and R = r_1 + ... + r_T. In
eq. 6 the reward of the state itself is known, so a model of the future predicts only G_t.
"""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import numpy.typing as npt

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.training.settings import Objective
from amc_agents.types import FloatArray, Trajectory

KeyArray = npt.NDArray[np.uint64]
"""`[S, 2]`, 128-bit fingerprints of states."""


def returns_to_come(trajectory: Trajectory) -> FloatArray:
    """Return the `[T + 1]` G_t = r_{t+1} + ... + r_T of all states (the target of eq. 7); 0 at the last state.

    >>> from amc_agents.types import Step, Task
    >>> steps = (Step("a"), Step("b", reward=0.25), Step("c", reward=1.0))
    >>> returns_to_come(Trajectory(Task("t", ""), steps, done=True)).tolist()
    [1.25, 1.25, 1.0, 0.0]
    """
    rewards = np.array([step.reward for step in trajectory.steps] + [0.0])
    return np.cumsum(rewards[::-1])[::-1].copy()


def state_returns(trajectory: Trajectory, objective: Objective) -> FloatArray:
    """Return the `[T + 1]` returns of this trajectory at all its states, before any average over trajectories.

    Raises:
        ConfigurationError: the trajectory is not done, so that its return is unknown; a return is not finite; or the
            loss is binary and a return is neither 0 nor 1.
    """
    if not trajectory.done:
        raise ConfigurationError(f"a {_name(trajectory)} is not done: its return is unknown; leave it out")
    if objective.target == "future":
        returns = returns_to_come(trajectory)
    else:
        returns = np.full(len(trajectory.steps) + 1, trajectory.return_)
    if not np.isfinite(returns).all():
        infinite = returns[~np.isfinite(returns)][0]
        raise ConfigurationError(f"a {_name(trajectory)} has a return of {infinite}: expected finite rewards")
    if objective.loss == "bce":
        other = sorted({float(value) for value in returns if value not in (0.0, 1.0)})
        if other:
            raise ConfigurationError(
                f"loss='bce' needs returns of 0 or 1 at every state; a {_name(trajectory)} has "
                f"{', '.join(map(str, other[:5]))}: use loss='squared', or a single reward of 1 for success"
            )
    return returns


def state_keys(trajectory: Trajectory) -> KeyArray:
    """Return the `[T + 1, 2]` fingerprints of all states: of the task and the steps so far, as a critic reads them.

    Two trajectories share a state if task, instruction, thoughts, actions and observations are equal up to it. Rewards
    and message ids are ignored.
    """
    digest = hashlib.blake2b(_field(trajectory.task.id, trajectory.task.instruction), digest_size=16)
    keys = [digest.digest()]
    for step in trajectory.steps:
        digest.update(_field(step.thought, step.action, step.observation))
        keys.append(digest.copy().digest())
    return np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)


def soft_returns(keys: KeyArray, returns: FloatArray, beta: float) -> FloatArray:
    """Compute eq. 5 over a set of states: beta log mean exp(G / beta) over all entries with the same state.

    A state that only one trajectory passes keeps the return of that trajectory: eq. 7.

    Args:
        keys: `[S, 2]` fingerprint of each entry's state.
        returns: `[S]` the entries' returns.
        beta: temperature of eq. 5, in reward units.

    Returns:
        `[S]` values in the order of the entries.
    """
    if not len(keys):
        return np.zeros(0)
    # Sorted by return within a state, so that the sum does not depend on the order of the trajectories.
    order = np.lexsort((returns, keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)])
    counts = np.diff(np.r_[starts, len(keys)])
    sorted_returns = returns[order]
    # Shifted by the largest return of each group: no beta overflows, and equal returns are kept exactly.
    largest = np.maximum.reduceat(sorted_returns, starts)
    tilted = np.exp((sorted_returns - np.repeat(largest, counts)) / beta)
    soft = largest + beta * np.log(np.add.reduceat(tilted, starts) / counts)
    values = np.empty(len(returns))
    values[order] = np.repeat(soft, counts)
    return values


class ExponentialWeights:
    """The weights of loss="weighted": exp(G / beta) / mean exp(G / beta), the mean over a set that is added in pieces.

    Exponents are relative to the largest return so far: no beta overflows, and equal returns get weight 1.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta
        self._largest, self._sum, self._n = -math.inf, 0.0, 0

    def add(self, returns: FloatArray) -> None:
        """Add `[S]` returns to the set."""
        if len(returns):
            largest = max(self._largest, float(returns.max()))
            self._sum *= math.exp((self._largest - largest) / self.beta)
            self._sum += float(np.exp((returns - largest) / self.beta).sum())
            self._largest, self._n = largest, self._n + len(returns)

    def of(self, returns: FloatArray) -> FloatArray:
        """Return the `[S]` weights of returns of the set, which must not be empty."""
        return np.asarray(np.exp((returns - self._largest) / self.beta) / (self._sum / self._n))


def _name(trajectory: Trajectory) -> str:
    return f"trajectory of task {quoted(trajectory.task.id)}"


def _field(*texts: str) -> bytes:
    # JSON lists, so that different rounds never give the same bytes.
    return json.dumps(texts).encode()
