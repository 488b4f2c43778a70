"""The searches of reproduce/beyond against worlds whose posterior and log Z are known."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from amc_agents.critics.value.local import EmbeddedCritic, shipped_folder
from amc_agents.envs.registry import world
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.testing.enumerable import EnumerableWorld
from reproduce.beyond.filtering import filtered, independent
from reproduce.beyond.play import Policy, Spent, Table

BETA = 0.7
WORLD = EnumerableWorld.random(3, max_depth=4, n_leaves=(8, 14))
LOG_Z = WORLD.log_evidence(BETA)


@dataclass(frozen=True)
class Walk:
    """A particle at a node."""

    node: int
    finished: bool = False
    proposal: int = 0


class Tree:
    """Enumerable worlds with the same tree and rewards as the model of a search, one world per proposal."""

    def __init__(self, rng, *worlds):
        self.rng, self.worlds, first = rng, worlds, worlds[0]
        self.table = first.returns + np.where(first.is_leaf, 0.0, first.imperfect_critic)

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


def found_of(search, n_runs, *worlds):
    """Results of `search(model, rng)` for many seeds."""

    async def run():
        return [
            await search(Tree(np.random.default_rng([seed, 0]), *worlds), np.random.default_rng([seed, 1]))
            for seed in range(n_runs)
        ]

    return asyncio.run(run())


def assert_unbiased(found, log_z):
    ratio = np.exp(np.array([each.log_evidence for each in found]) - log_z)
    error = ratio.std(ddof=1) / np.sqrt(len(ratio))
    assert error < 0.02, f"the test is too weak: standard error {error:.4f}"
    assert abs(ratio.mean() - 1.0) < 4 * error, f"biased: {ratio.mean():.4f} +- {error:.4f}"


@pytest.mark.thorough
def test_several_proposals_estimate_the_mixture():
    other = replace(WORLD, probabilities=flattened(WORLD))
    assert abs(other.log_evidence(BETA) - LOG_Z) > 0.05
    log_z = np.logaddexp(LOG_Z, other.log_evidence(BETA)) - np.log(2)
    search = lambda model, rng: filtered(model, 4, (1, 2, 3), BETA, rng)  # noqa: E731
    assert_unbiased(found_of(search, 2500, WORLD, other), log_z)


def flattened(world):
    """Probabilities of a policy that prefers the last branch."""
    exists = world.children >= 0
    odds = np.where(exists, np.arange(1.0, exists.shape[1] + 1.0) ** 2, 0.0)
    return odds / np.maximum(odds.sum(axis=1, keepdims=True), 1.0)


@pytest.fixture(scope="module")
def policy():
    return Policy("workshop")


def test_a_dialogue_grows_as_the_chat_template_writes_it(policy):
    said = [("user", "Goal: craft oak gate."), ("assistant", "Action: get 1 fern"), ("user", "Got 1 fern")]
    dialogue = policy.extended(policy.opening(said[0][1]), said[1][1], said[2][1])
    assert list(dialogue) == policy.tokenizer.encode_chat(said)


def test_greedy_turns_are_those_of_the_chat_model(policy):
    tasks = list(world("crafting-stock").tasks(3, "train", 0))
    model = EmbeddedChatModel(model="workshop", temperature=0)
    expected = [model.invoke(task.instruction).content for task in tasks]
    spent = Spent()
    prompts = [policy.opening(task.instruction) for task in tasks]
    turns = policy.turns([*prompts, *prompts], np.random.default_rng(0), np.zeros(6), spent)
    assert turns == [*expected, *expected]
    assert spent.policy_calls == 6
    assert spent.policy_tokens >= sum(len(policy.tokenizer.encode(turn)) for turn in turns)


def test_a_search_plays_the_world_to_its_end(policy):
    [task] = world("crafting-stock-hidden").tasks(1, "train", 0)
    critic = EmbeddedCritic(shipped_folder("workshop"))
    make = world("crafting-stock-hidden").make

    def found(search, hide):
        table = Table(task, make, [policy], [0.8], critic, np.random.default_rng(0), 4, hide)
        return asyncio.run(search(table, np.random.default_rng(1))), table.spent

    result, spent = found(lambda table, rng: filtered(table, 5, (1, 3), 0.2, rng), hide=True)
    assert spent.policy_calls == 20
    assert spent.critic_calls > 5
    assert all(len(state.trajectory.steps) == 4 for state in result.states)
    assert all(value > 0 for value in result.values), "the critic judges the ends"
    seen, spent = found(lambda table, _: independent(table, 5, 0.2), hide=False)
    assert seen.values == [state.trajectory.return_ for state in seen.states]
    assert spent.critic_calls == 0
