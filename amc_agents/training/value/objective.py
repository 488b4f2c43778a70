"""What a value model is asked to predict, and by which loss: the targets of every state of a set of trajectories.

Notation (papers: AMC, section 2.3): G_t = r_{t+1} + ... + r_T, the return still to come at s_t; R = r_1 + ... + r_T.
In eq. 6 the reward of the state itself is known, so a model of the future predicts G_t alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray, Trajectory

KeyArray = npt.NDArray[np.uint64]
"""`[S, 2]` 128-bit fingerprints of states."""


@dataclass(frozen=True)
class Objective:
    """Which value is learnt.

    | setting | the score that minimises the loss at a state s |
    |---|---|
    | squared | E[G given s] (eq. 7) |
    | squared, soft | beta log E[exp(G / beta) given s] (eq. 5), the mean taken over the data's continuations of s |
    | weighted | E[G exp(G / beta) given s] / E[exp(G / beta) given s] |
    | bce | the log-odds of G = 1 given s |

    "weighted" is what we take the paper's "exponentially weighted MSE" to be (table 7 has the name alone): the squared
    error, each state weighted by exp(G / beta), with weights of mean 1 over the training set. Its minimiser
    is the mean of G under the tilted policy pi(continuation) exp(G / beta), which is the derivative of
    log E[exp(G / beta)] by 1 / beta; it lies above eq. 5's value, and the two agree where G does not vary.
    """

    loss: Literal["squared", "weighted", "bce"] = "squared"
    """Squared error; the same with exponential weights; binary cross-entropy of a logit, for returns of 0 and 1."""
    target: Literal["future", "return"] = "future"
    """G: the return still to come, G_t (eq. 7), or the whole return R at every state."""
    beta: float | None = None
    """In reward units: of eq. 5 (soft), or of the weights (weighted); None for the others."""
    soft: bool = False
    """Targets of eq. 5; they need several trajectories of each task to differ from eq. 7's."""
    td_lambda: float = 1.0
    """1: Monte Carlo, the paper. Less: TD(lambda), targets that lean on the model's own values of later states."""

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if self.loss not in ("squared", "weighted", "bce"):
            raise ConfigurationError(f"loss is {self.loss!r}: expected 'squared', 'weighted' or 'bce'")
        if self.target not in ("future", "return"):
            raise ConfigurationError(f"target is {self.target!r}: expected 'future' or 'return'")
        if not 0 <= self.td_lambda <= 1:
            raise ConfigurationError(f"td_lambda is {self.td_lambda}: expected 0 to 1 (1: Monte Carlo)")
        if self.beta is not None and not 0 < self.beta < math.inf:
            raise ConfigurationError(f"beta is {self.beta}: expected a positive number, in reward units")
        self._check_beta()

    def _check_beta(self) -> None:
        if self.soft and self.loss == "weighted":
            raise ConfigurationError(
                "soft and loss='weighted' both tilt towards high returns: choose soft (eq. 5) or weighted (table 7)"
            )
        if self.soft and self.td_lambda < 1:
            raise ConfigurationError(
                f"soft with td_lambda {self.td_lambda}: later values of one trajectory do not add up to a log-mean-exp "
                "over several; use td_lambda=1 with soft, or soft=False"
            )
        user = "soft" if self.soft else "loss='weighted'" if self.loss == "weighted" else None
        if user is not None and self.beta is None:
            raise ConfigurationError(f"{user} needs beta, in reward units: use that of the runs to come")
        if user is None and self.beta is not None:
            raise ConfigurationError(
                f"beta is {self.beta}, but loss={self.loss!r} with soft=False has no beta: leave it out, or set soft"
            )

    def check_best_of(self, best_of: int | None) -> None:
        """Refuse eq. 5 over the best trajectories alone (`dataset.iter_records`).

        Raises:
            ConfigurationError: both are asked for.
        """
        if self.soft and best_of is not None:
            raise ConfigurationError(
                f"best_of {best_of} with soft: eq. 5 averages over all continuations of a state, and the best alone is "
                "no sample of them; leave out one of the two"
            )

    @property
    def stored_beta(self) -> float | None:
        """The one beta that the trained values hold for (`ValueCheckpoint.beta`); None: any."""
        return self.beta if self.soft else None

    @property
    def link(self) -> Literal["identity", "sigmoid"]:
        """Score -> value."""
        return "sigmoid" if self.loss == "bce" else "identity"


def returns_to_come(trajectory: Trajectory) -> FloatArray:
    """`[T + 1]` G_t = r_{t+1} + ... + r_T for each state (the target of eq. 7); 0 at the last one.

    >>> from amc_agents.types import Step, Task
    >>> steps = (Step("a"), Step("b", reward=0.25), Step("c", reward=1.0))
    >>> returns_to_come(Trajectory(Task("t", ""), steps, done=True)).tolist()
    [1.25, 1.25, 1.0, 0.0]
    """
    rewards = np.array([step.reward for step in trajectory.steps] + [0.0])
    return np.cumsum(rewards[::-1])[::-1].copy()


def state_returns(trajectory: Trajectory, objective: Objective) -> FloatArray:
    """`[T + 1]` the return that this trajectory gave from each of its states on, before any average.

    Raises:
        ConfigurationError: it is not finished, so that its return is unknown; a return is no number; or it is neither 0
            nor 1 and the loss is binary.
    """
    name = f"trajectory of task {trajectory.task.id!r}"
    if not trajectory.done:
        raise ConfigurationError(f"a {name} is not done: its return is unknown; leave it out")
    if objective.target == "future":
        found = returns_to_come(trajectory)
    else:
        found = np.full(len(trajectory.steps) + 1, trajectory.return_)
    if not np.isfinite(found).all():
        raise ConfigurationError(f"a {name} has a return of {found[~np.isfinite(found)][0]}: expected finite rewards")
    if objective.loss == "bce":
        other = sorted({float(one) for one in found if one not in (0.0, 1.0)})
        if other:
            raise ConfigurationError(
                f"loss='bce' takes returns of 0 and 1 at every state; a {name} has {', '.join(map(str, other[:5]))}: "
                "use loss='squared', or rewards of a single 1 for success"
            )
    return found


def state_keys(trajectory: Trajectory) -> KeyArray:
    """`[T + 1, 2]` fingerprint of each state: the task and the steps so far, as a critic reads them.

    Two trajectories share a state where task, instruction, thoughts, actions and observations agree up to it; rewards
    and message ids are not read.
    """
    digest = hashlib.blake2b(_field(trajectory.task.id, trajectory.task.instruction), digest_size=16)
    keys = [digest.digest()]
    for step in trajectory.steps:
        digest.update(_field(step.thought, step.action, step.observation))
        keys.append(digest.copy().digest())
    return np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)


def soft_returns(keys: KeyArray, returns: FloatArray, beta: float) -> FloatArray:
    """Eq. 5 over a set of states: beta log mean exp(G / beta) over all entries that are the same state.

    A state that one trajectory alone has passed keeps that one's return: eq. 7.

    Args:
        keys: `[S, 2]` which state each entry is.
        returns: `[S]` its return.
        beta: of eq. 5, in reward units.

    Returns:
        `[S]` in the order of the entries.
    """
    if not len(keys):
        return np.zeros(0)
    # By return within a state, so that the sum does not depend on the order in which trajectories come.
    order = np.lexsort((returns, keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)])
    counts = np.diff(np.r_[starts, len(keys)])
    sorted_returns = returns[order]
    # Shifted by the largest of each group: no beta overflows, and a group of equal returns keeps them to the last bit.
    largest = np.maximum.reduceat(sorted_returns, starts)
    tilted = np.exp((sorted_returns - np.repeat(largest, counts)) / beta)
    soft = largest + beta * np.log(np.add.reduceat(tilted, starts) / counts)
    found = np.empty(len(returns))
    found[order] = np.repeat(soft, counts)
    return found


class ExponentialWeights:
    """The weights of loss="weighted": exp(G / beta) / mean exp(G / beta), the mean over a set that comes in pieces.

    Everything is relative to the largest return so far: no beta overflows, and returns that are all the same weigh 1.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta
        self._largest, self._sum, self._n = -math.inf, 0.0, 0

    def add(self, returns: FloatArray) -> None:
        """Counts `[S]` returns more of the set."""
        if len(returns):
            largest = max(self._largest, float(returns.max()))
            self._sum *= math.exp((self._largest - largest) / self.beta)
            self._sum += float(np.exp((returns - largest) / self.beta).sum())
            self._largest, self._n = largest, self._n + len(returns)

    def of(self, returns: FloatArray) -> FloatArray:
        """`[S]` weights of returns of the set, in which there is at least one."""
        return np.asarray(np.exp((returns - self._largest) / self.beta) / (self._sum / self._n))


def _field(*texts: str) -> bytes:
    # Each part as a JSON list, so that no two different rounds write the same bytes.
    return json.dumps(texts).encode()
