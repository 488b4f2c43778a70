"""A world with known paths, in which values are sums over paths and a sample can be the whole population."""

from __future__ import annotations

import math

from amc_agents.types import Step, Task, Trajectory

TASK = Task("tree", "walk")

# Actions so far -> [(relative probability, action, reward)].
TREE = {
    "": [(1, "a", 0.0), (3, "b", 0.25)],
    "a": [(1, "x", 1.0), (1, "y", -1.0)],
    "b": [(1, "x", 0.5), (2, "y", 0.0), (1, "z", 0.75)],
    "by": [(1, "p", 2.0), (3, "q", 0.0)],
}


def chance(state, weight):
    return weight / sum(one for one, _, _ in TREE[state])


def soft_value(state, beta):
    """beta log E[exp(G / beta)], by recursion over the tree, without sampling or grouping."""
    if state not in TREE:
        return 0.0
    terms = [chance(state, w) * math.exp((r + soft_value(state + a, beta)) / beta) for w, a, r in TREE[state]]
    return beta * math.log(sum(terms))


def mean_value(state):
    return sum(chance(state, w) * (r + mean_value(state + a)) for w, a, r in TREE[state]) if state in TREE else 0.0


def paths(state="", steps=(), probability=1.0):
    if state not in TREE:
        yield Trajectory(TASK, steps, done=True), probability
        return
    for weight, action, reward in TREE[state]:
        step = Step(action, "seen", reward=reward)
        yield from paths(state + action, (*steps, step), probability * chance(state, weight))


def population():
    """Every path in proportion to its probability, so that sample means are expectations."""
    trajectories = [trajectory for trajectory, probability in paths() for _ in range(round(64 * probability))]
    assert len(trajectories) == 64
    return trajectories


def name(trajectory, t):
    return "".join(step.action for step in trajectory.steps[:t])


def tilted_mean(state, beta):
    """E[G exp(G / beta)] / E[exp(G / beta)] over all paths from a state on."""
    rest = [(one.return_, probability) for one, probability in paths(state)]
    return sum(p * g * math.exp(g / beta) for g, p in rest) / sum(p * math.exp(g / beta) for g, p in rest)
