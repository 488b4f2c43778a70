"""The searches of reproduce/beyond against worlds whose posterior and log Z are known."""

from __future__ import annotations

import asyncio
import importlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from amc_agents.critics.value.embedded import EmbeddedCritic, shipped_folder
from amc_agents.envs.registry import world
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.smc import ess, log_sum_exp
from amc_agents.testing.enumerable import EnumerableWorld

BETA = 0.7
WORLD = EnumerableWorld.random(3, max_depth=4, n_leaves=(8, 14))
LOG_Z = WORLD.log_evidence(BETA)


MODULES = ("found", "softening", "filtering", "without_replacement", "looking_ahead", "conditioning", "play")


@pytest.fixture(scope="module")
def searches():
    """Everything that the modules of reproduce/beyond define."""
    folder = str(Path(__file__).parent.parent / "reproduce" / "beyond")
    sys.path.insert(0, folder)
    try:
        modules = [importlib.import_module(name) for name in MODULES]
        yield SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})
    finally:
        sys.path.remove(folder)
        for name in MODULES:
            sys.modules.pop(name, None)


@dataclass(frozen=True)
class Walk:
    """A particle at a node."""

    node: int
    finished: bool = False
    proposal: int = 0

    @property
    def key(self):
        return self.proposal, self.node


class Tree:
    """Enumerable worlds with the same tree and rewards as the model of a search, one world per proposal."""

    def __init__(self, rng, *worlds, future=None):
        self.rng, self.worlds, first = rng, worlds, worlds[0]
        self.table = first.returns + np.where(first.is_leaf, 0.0, first.imperfect_critic if future is None else future)

    async def begin(self, n):
        return [Walk(0, proposal=kind) for kind in np.sort(np.arange(n) % len(self.worlds)).tolist()]

    async def step(self, states):
        return [self.moved(state, self.drawn(state)) for state in states]

    def drawn(self, state):
        world = self.worlds[state.proposal]
        return int(self.rng.choice(world.children[state.node], p=world.probabilities[state.node]))

    def moved(self, state, node):
        return replace(state, node=node, finished=bool(self.worlds[0].is_leaf[node]))

    async def values(self, states):
        return self.table[[state.node for state in states]]


async def enumerated(model, states, log_weights):
    """Propose every child with its exact probability."""
    world = model.worlds[0]
    edges = [
        (i, branch) for i, state in enumerate(states) for branch in np.flatnonzero(world.children[state.node] >= 0)
    ]
    moved = [model.moved(states[i], int(world.children[states[i].node, branch])) for i, branch in edges]
    shares = [world.probabilities[states[i].node, branch] for i, branch in edges]
    return moved, np.array([i for i, _ in edges]), np.log(shares)


def soft_future(world, beta):
    """`[V]` beta log E[exp(future return / beta)] of every node."""
    soft = np.zeros(len(world.children))
    for node in reversed(range(len(world.children))):
        branches = world.children[node] >= 0
        if branches.any():
            children = world.children[node][branches]
            terms = np.log(world.probabilities[node][branches]) + (world.rewards[children] + soft[children]) / beta
            soft[node] = beta * log_sum_exp(terms)
    return soft


def found_of(search, n_runs, *worlds):
    """Results of `search(model, rng)` for many seeds."""

    async def run():
        worlds_ = worlds or (WORLD,)
        return [
            await search(Tree(np.random.default_rng([seed, 0]), *worlds_), np.random.default_rng([seed, 1]))
            for seed in range(n_runs)
        ]

    return asyncio.run(run())


def assert_unbiased(found, log_z=LOG_Z):
    ratio = np.exp(np.array([each.log_evidence for each in found]) - log_z)
    error = ratio.std(ddof=1) / np.sqrt(len(ratio))
    assert error < 0.02, f"the test is too weak: standard error {error:.4f}"
    assert abs(ratio.mean() - 1.0) < 4 * error, f"biased: {ratio.mean():.4f} +- {error:.4f}"


WEIGHTS = [
    [1.0, 1.0, 1.0, 1.0, 1.0],
    [10.0, 1.0, 1.0, 1.0, 0.5],
    [5.0, 4.0, 0.1, 0.1, 0.1, 0.0],
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0],
    [1e-9, 1.0, 1e-9, 1.0, 1e-9, 1e-9],
]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_resampling_without_replacement_is_unbiased_and_keeps_the_total(searches, weights, n):
    rng, weights = np.random.default_rng(0), np.array(weights)
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights) + 700.0
    after = np.zeros((400, len(weights)))
    for row in after:
        indices, kept = searches.without_replacement(rng, log_weights, n)
        assert len(np.unique(indices)) == len(indices) == min(n, np.sum(weights > 0))
        assert np.all(weights[indices] > 0)
        row[indices] = np.exp(kept - 700.0)
        np.testing.assert_allclose(row.sum(), weights.sum())
    error = after.std(axis=0) / np.sqrt(len(after))
    assert np.all(np.abs(after.mean(axis=0) - weights) <= 4.5 * error + 1e-6 * weights.sum())


def test_heavy_particles_keep_their_weights_and_the_others_share_the_threshold(searches):
    weights = np.array([10.0, 1.0, 4.0, 1.0, 1.0, 1.0])
    indices, kept = searches.without_replacement(np.random.default_rng(0), np.log(weights), 4)
    assert {0, 2} < set(indices)
    np.testing.assert_allclose(np.exp(kept), np.where(np.isin(indices, [0, 2]), weights[indices], 2.0))


def test_looking_ahead_has_no_variance_where_everything_is_exact(searches):
    async def search(model, rng):
        model.table = WORLD.returns + soft_future(WORLD, BETA)
        return await searches.looking_ahead(model, 3, range(1, 9), BETA, rng, enumerated)

    found = found_of(search, 20)
    np.testing.assert_allclose([each.log_evidence for each in found], LOG_Z)
    assert len({tuple(state.node for state in each.states) for each in found}) > 1, "no particle was ever dropped"


@pytest.mark.thorough
@pytest.mark.parametrize("points", [range(1, 9), (2,)], ids=str)
def test_looking_ahead_is_unbiased(searches, points):
    assert_unbiased(
        found_of(lambda model, rng: searches.looking_ahead(model, 3, points, BETA, rng, searches.Sampled(7)), 2500)
    )


def test_looking_ahead_has_no_clones(searches):
    for each in found_of(
        lambda model, rng: searches.looking_ahead(model, 3, range(1, 9), BETA, rng, searches.Sampled(7)), 50
    ):
        assert len({state.node for state in each.states}) == len(each.states)


@pytest.mark.thorough
def test_a_falling_number_of_particles_is_unbiased(searches):
    assert_unbiased(found_of(lambda model, rng: searches.filtered(model, (8, 4, 2), (1, 2, 3), BETA, rng), 2500))


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [1, 2, 5])
def test_distinct_ancestors_are_unbiased(searches, keep):
    search = lambda model, rng: searches.filtered(model, (5,), (1, 2, 3), BETA, rng, keep=keep)  # noqa: E731
    assert_unbiased(found_of(search, 2500))


def test_distinct_ancestors_share_the_slots_and_their_weights(searches):
    log_weights = np.log([4.0, 1.0, 1.0, 2.0, 0.5, 0.5])
    ancestors, after = searches.distinct_ancestors(np.random.default_rng(0), "abbcde", log_weights, 3, 7)
    assert len(set(ancestors)) == 3
    assert 0 in ancestors
    assert 2 not in ancestors, "equal states were not merged"
    assert np.bincount(ancestors)[0] == 3, "the remainder goes to the heaviest"
    np.testing.assert_allclose(np.exp(log_sum_exp(after)), 9.0)
    np.testing.assert_allclose(np.exp(after[ancestors == 0]), 4.0 / 3)


@pytest.mark.thorough
def test_several_proposals_estimate_the_mixture(searches):
    other = replace(WORLD, probabilities=flattened(WORLD))
    assert abs(other.log_evidence(BETA) - LOG_Z) > 0.05
    log_z = np.logaddexp(LOG_Z, other.log_evidence(BETA)) - np.log(2)
    for search in (
        lambda model, rng: searches.filtered(model, (4,), (1, 2, 3), BETA, rng),
        lambda model, rng: searches.looking_ahead(model, 4, (1, 2, 3), BETA, rng, searches.Sampled(8)),
    ):
        assert_unbiased(found_of(search, 2500, WORLD, other), log_z)


def flattened(world):
    """Probabilities of a policy that prefers the last branch."""
    exists = world.children >= 0
    odds = np.where(exists, np.arange(1.0, exists.shape[1] + 1.0) ** 2, 0.0)
    return odds / np.maximum(odds.sum(axis=1, keepdims=True), 1.0)


def test_softening_reaches_the_sample_size_and_never_sharpens(searches):
    values, zeros = np.array([0.1, 0.2, 0.5, 0.9]), np.zeros(4)
    beta = searches.softened(values, zeros, zeros, 0.01, 0.6)
    assert beta > 0.01
    assert ess(values / beta) >= 2.4
    assert ess(values / (beta / 1.13)) < 2.4
    assert searches.softened(values, zeros, zeros, 10.0, 0.6) == 10.0
    assert searches.softened(np.full(4, 0.3), zeros, zeros, 0.01, 1.0) == 0.01


@pytest.mark.thorough
def test_softening_is_consistent(searches):
    def bias(n, n_runs):
        search = lambda model, rng: searches.filtered(model, (n,), (1, 2, 3), 0.25, rng, 0.8)  # noqa: E731
        found = found_of(search, n_runs)
        assert max(max(each.betas, default=0.0) for each in found) > 0.25, "nothing was softened"
        ratio = np.exp([each.log_evidence - WORLD.log_evidence(0.25) for each in found])
        return ratio.mean() - 1.0, ratio.std(ddof=1) / np.sqrt(n_runs)

    many, error = bias(200, 60)
    assert abs(many) < 4 * error + 0.01


@pytest.mark.thorough
@pytest.mark.parametrize("points", [(1, 2, 3), (2,)], ids=str)
def test_conditional_search_leaves_the_posterior_invariant(searches, points):
    counts, n_runs = np.zeros(len(WORLD.children)), 3000
    posterior = WORLD.posterior(BETA)
    parents = {int(child): node for node, row in enumerate(WORLD.children) for child in row if child >= 0}

    def path(leaf):
        nodes = [leaf]
        while parents[nodes[0]]:
            nodes.insert(0, parents[nodes[0]])
        return [Walk(node, bool(WORLD.is_leaf[node])) for node in nodes]

    async def search(model, rng):
        reference = path(int(rng.choice(WORLD.leaves, p=posterior)))
        paths, log_weights, _ = await searches.conditional(model, 3, points, BETA, rng, reference)
        counts[paths[rng.choice(3, p=np.exp(log_weights - log_sum_exp(log_weights)))][-1].node] += 1

    found_of(search, n_runs)
    expected = n_runs * posterior
    chi_square = np.sum((counts[WORLD.leaves] - expected) ** 2 / expected)
    freedom = len(posterior) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom), (chi_square, freedom)


@pytest.fixture(scope="module")
def policy(searches):
    return searches.Policy("workshop")


def test_a_dialogue_grows_as_the_chat_template_writes_it(policy):
    said = [("user", "Goal: craft oak gate."), ("assistant", "Action: get 1 fern"), ("user", "Got 1 fern")]
    dialogue = policy.extended(policy.opening(said[0][1]), said[1][1], said[2][1])
    assert list(dialogue) == policy.tokenizer.encode_chat(said)


def test_greedy_turns_are_those_of_the_chat_model(searches, policy):
    tasks = list(world("crafting-stock").tasks(3, "train", 0))
    model = EmbeddedChatModel(model="workshop", temperature=0)
    expected = [model.invoke(task.instruction).content for task in tasks]
    spent = searches.Spent()
    prompts = [policy.opening(task.instruction) for task in tasks]
    turns = policy.turns([*prompts, *prompts], np.random.default_rng(0), np.zeros(6), spent)
    assert turns == [*expected, *expected]
    assert spent.policy_calls == 6
    assert spent.policy_tokens >= sum(len(policy.tokenizer.encode(turn)) for turn in turns)


def test_a_search_plays_the_world_to_its_end(searches, policy):
    [task] = world("crafting-stock-hidden").tasks(1, "train", 0)
    critic = EmbeddedCritic(shipped_folder("workshop"))
    make = world("crafting-stock-hidden").make

    def found(search, hide):
        table = searches.Table(task, make, [policy], [0.8], critic, np.random.default_rng(0), 4, hide)
        return asyncio.run(search(table, np.random.default_rng(1))), table.spent

    ahead = lambda table, rng: searches.looking_ahead(table, 2, (1, 2, 3), 0.2, rng, searches.Sampled(6))  # noqa: E731
    result, spent = found(ahead, hide=True)
    assert spent.policy_calls == 24
    assert spent.critic_calls >= len(result.states)
    assert all(len(state.trajectory.steps) == 4 for state in result.states)
    assert len({state.dialogue for state in result.states}) == len(result.states)
    assert all(value > 0 for value in result.values), "the critic judges the ends"
    seen, spent = found(lambda table, _: searches.independent(table, 5, 0.2), hide=False)
    assert seen.values == [state.trajectory.return_ for state in seen.states]
    assert spent.critic_calls == 0
