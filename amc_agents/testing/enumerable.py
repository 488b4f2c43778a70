"""An enumerable world: a small random tree whose posterior pi* and log Z are known exactly.

A particle is the id of a node, which determines the whole trajectory. `run_smc` moves particles as the AMC graph does,
so the estimates of thousands of populations can be checked against the exact values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amc_agents.smc import filter as smc_filter
from amc_agents.smc.filter import FilterState, FinishedMode
from amc_agents.smc.resampling import Schedule, Scheme
from amc_agents.smc.weights import BoolArray, log_sum_exp, normalised
from amc_agents.types import FloatArray, IntArray

Potential = Callable[[IntArray], FloatArray]
"""`(nodes [..., N]) -> phi [..., N]`; NaN if unknown, for example after a critic's failure."""


@dataclass(frozen=True, eq=False)
class EnumerableWorld:
    """A tree of V nodes. Node 0 is the root, parents precede their children, and a leaf ends a trajectory."""

    children: IntArray
    """`[V, B]` child nodes, padded with -1."""
    probabilities: FloatArray
    """`[V, B]` pi: probability of each child under the policy and the world."""
    rewards: FloatArray
    """`[V]` reward on arrival at a node; 0 at the root."""
    critic_errors: FloatArray
    """`[V]` errors of the imperfect critic, at leaves too."""

    @classmethod
    def random(cls, seed: int, max_depth: int = 6, n_leaves: tuple[int, int] = (16, 32)) -> EnumerableWorld:
        """Draw a tree with a number of leaves in the range `n_leaves`, at unequal depths."""
        rng = np.random.default_rng(seed)
        while True:
            children = _random_tree(rng, max_depth)
            if n_leaves[0] <= np.sum(np.all(children < 0, axis=1)) <= n_leaves[1]:
                break
        exists, size = children >= 0, len(children)
        odds = np.where(exists, rng.uniform(0.3, 1.0, children.shape), 0.0)
        total = np.sum(odds, axis=1, keepdims=True)
        rewards = rng.normal(0.0, 0.4, size)
        rewards[0] = 0.0
        return cls(children, odds / np.where(total > 0.0, total, 1.0), rewards, rng.normal(0.1, 0.3, size))

    @cached_property
    def is_leaf(self) -> BoolArray:
        """`[V]` whether a node ends a trajectory."""
        leaf: BoolArray = np.all(self.children < 0, axis=1)
        return leaf

    @cached_property
    def leaves(self) -> IntArray:
        """`[L]` the final nodes, one per trajectory."""
        return np.flatnonzero(self.is_leaf)

    @cached_property
    def _paths(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Depth, pi and R of every node `[V]`."""
        size = len(self.children)
        depth, pi, returns = np.zeros(size, dtype=np.int64), np.ones(size), self.rewards.copy()
        for node, branch in np.argwhere(self.children >= 0):
            child = self.children[node, branch]
            depth[child] = depth[node] + 1
            pi[child] = pi[node] * self.probabilities[node, branch]
            returns[child] = returns[node] + self.rewards[child]
        return depth, pi, returns

    @property
    def depth(self) -> IntArray:
        """`[V]` number of steps from the root."""
        return self._paths[0]

    @property
    def pi(self) -> FloatArray:
        """`[L]` probability of each trajectory under the policy."""
        return self._paths[1][self.leaves]

    @property
    def returns(self) -> FloatArray:
        """`[V]` R: sum of the rewards up to each node."""
        return self._paths[2]

    def posterior(self, beta: float) -> FloatArray:
        """`[L]` pi*: proportional to pi exp(R / beta) (eq. 2)."""
        return normalised(np.log(self.pi) + self.returns[self.leaves] / beta)

    def log_evidence(self, beta: float) -> float:
        """Log Z = log E_pi[exp(R_T / beta)]."""
        return float(log_sum_exp(np.log(self.pi) + self.returns[self.leaves] / beta))

    @cached_property
    def future_return(self) -> FloatArray:
        """`[V]` the exact critic: E_pi of the remaining return (eq. 7); 0 at leaves."""
        future = np.zeros(len(self.children))
        for node in reversed(range(len(self.children))):
            for child, probability in zip(self.children[node], self.probabilities[node], strict=True):
                if child >= 0:
                    future[node] += probability * (self.rewards[child] + future[child])
        return future

    @property
    def imperfect_critic(self) -> FloatArray:
        """`[V]` values with errors everywhere, like a trained network's. Set them to 0 at leaves before use."""
        return self.future_return + self.critic_errors

    def rewards_seen(self, beta: float, critic: FloatArray | None = None) -> Potential:
        """Return potentials with observed rewards: phi = (R + f) / beta, with f = 0 at leaves.

        Args:
            beta: temperature of the target.
            critic: `[V]` f at every node; None for the imperfect critic.
        """
        values = self.imperfect_critic if critic is None else critic
        table = (self.returns + np.where(self.is_leaf, 0.0, values)) / beta
        return lambda nodes: table[nodes]

    def rewards_hidden(self, beta: float) -> Potential:
        """Return potentials without rewards: phi = g / beta, where g is an imperfect estimate of the whole return.

        The potential also applies at leaves, where g is the true return, so that the target is pi*.
        """
        expected = self.returns + self.future_return
        table = np.where(self.is_leaf, self.returns, expected + self.critic_errors[::-1]) / beta
        return lambda nodes: table[nodes]

    def advance(self, rng: np.random.Generator, nodes: IntArray) -> IntArray:
        """Move every particle `[..., N]` one step under pi. Finished particles stay."""
        thresholds = np.cumsum(self.probabilities, axis=1)[nodes]
        branch = np.sum(rng.random(nodes.shape)[..., np.newaxis] >= thresholds, axis=-1)
        last = np.maximum(
            np.sum(self.children[nodes] >= 0, axis=-1) - 1, 0
        )  # The probabilities may sum to slightly less than 1.
        return np.where(self.is_leaf[nodes], nodes, self.children[nodes, np.minimum(branch, last)])


@dataclass(frozen=True, eq=False)
class EnumerableRun:
    """Result of `run_smc`."""

    nodes: IntArray
    """`[..., M]` final nodes: first the particles in the slots, then the retired particles."""
    log_weights: FloatArray
    """`[..., M]` absolute log-weights; -inf marks an entry without a particle."""
    log_evidence: FloatArray
    """`[...]` estimate of log Z."""
    ancestors: tuple[IntArray, ...]
    """`[..., N]` ancestors at each resampling."""
    state: FilterState
    """Final state of the filter."""
    n_weighings: int
    """Number of evaluations of the potential."""

    def posterior(self, world: EnumerableWorld) -> FloatArray:
        """Return `[L]` the weight of each trajectory among the particles of one population `[M]`."""
        shares = np.bincount(self.nodes, weights=normalised(self.log_weights), minlength=len(world.children))
        return shares[world.leaves].astype(np.float64)


def run_smc(
    world: EnumerableWorld,
    rng: np.random.Generator,
    n_particles: int,
    schedule: Schedule,
    potential: Potential,
    scheme: str | Scheme = "systematic",
    mode: FinishedMode = "retire",
    batch: tuple[int, ...] = (),
) -> EnumerableRun:
    """Run sequential Monte Carlo over the world's trajectories, for a batch of independent populations.

    Args:
        world: the tree.
        rng: generator for all draws.
        n_particles: N.
        schedule: steps at which particles are weighed and resampled.
        potential: `world.rewards_seen(beta)`, `world.rewards_hidden(beta)`, or a custom potential.
        scheme: resampling scheme.
        mode: treatment of finished particles at a resampling.
        batch: leading axes of independent populations.
    """
    state = smc_filter.init(n_particles, batch)
    nodes = np.zeros((*batch, n_particles), dtype=np.int64)
    retired_nodes, retired_log_weights, history = [], [], []
    step, n_weighings = 0, 0
    while not np.all(world.is_leaf[nodes]):
        point = schedule.next_point(step)
        while step != point and not np.all(world.is_leaf[nodes]):
            nodes, step = world.advance(rng, nodes), step + 1
        finished = world.is_leaf[nodes]
        if step != point or np.all(finished):
            break
        phi = potential(nodes)
        known = ~np.isnan(phi)
        state, n_weighings = smc_filter.weigh(state, phi, known), n_weighings + 1
        live = ~(finished & known) if mode == "retire" else np.ones_like(finished)
        due = schedule.triggered(step, state.log_weights, live) & ~np.all(finished, axis=-1)
        if np.any(due):
            state, info = smc_filter.resample(rng, state, finished & known, scheme, mode, mask=due)
            retired_nodes.append(nodes)
            retired_log_weights.append(info.retired_log_weights)
            history.append(info.ancestors)
            nodes = np.take_along_axis(nodes, info.ancestors, axis=-1)
    state, n_weighings = smc_filter.weigh(state, potential(nodes)), n_weighings + 1
    return EnumerableRun(
        nodes=np.concatenate([nodes, *retired_nodes], axis=-1),
        log_weights=np.concatenate([state.log_weights, *retired_log_weights], axis=-1),
        log_evidence=smc_filter.log_evidence(state),
        ancestors=tuple(history),
        state=state,
        n_weighings=n_weighings,
    )


def _random_tree(rng: np.random.Generator, max_depth: int, width: int = 3) -> IntArray:
    """Draw `[V, width]` children: one to `width` per node, or none, with a probability that grows with the depth."""
    children: list[list[int]] = [[]]
    depths = [0]
    node = 0
    while node < len(children):
        ends = depths[node] == max_depth or (depths[node] > 0 and rng.random() < 0.15 + 0.08 * depths[node])
        for _ in range(0 if ends else rng.integers(1, width + 1)):
            children[node].append(len(children))
            children.append([])
            depths.append(depths[node] + 1)
        node += 1
    return np.array([row + [-1] * (width - len(row)) for row in children], dtype=np.int64)
