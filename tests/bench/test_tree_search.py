"""Tree search in a world of coins, whose best action is known."""

import math

import numpy as np
import pytest

from amc_agents.bench.growth import Node
from amc_agents.bench.methods import GROUPS, TreeSettings, best_of_n, chosen, lats, stopping, tree_of_thoughts
from amc_agents.bench.runner import compare, run_one
from amc_agents.bench.searches import _selected, tree_search
from amc_agents.errors import ConfigurationError, PopulationError
from amc_agents.types import Task, Trajectory
from tests.bench.coins import LENGTH, BitWorld, ShareOfOnes, coins, comparison_of_coins

TASK = Task("bits/0", "Say bits.")


class CountedWorld(BitWorld):
    open = most_open = 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        CountedWorld.open += 1
        CountedWorld.most_open = max(CountedWorld.open, CountedWorld.most_open)

    async def fork(self, seed):
        twin = CountedWorld(self.pays)
        twin.actions = list(self.actions)
        return twin

    async def close(self):
        CountedWorld.open -= 1


async def searched(settings, *, critic=None, pays=lambda actions: float(all(actions)), seed=0, success=1.0, horizon=9):
    CountedWorld.open = CountedWorld.most_open = 0
    run = await tree_search(
        coins(1.0), critic or ShareOfOnes(), lambda: CountedWorld(pays), TASK, settings,
        horizon=horizon, seed=seed, success=success,
    )  # fmt: skip
    assert CountedWorld.open == 0, "every world is closed"
    return run


async def test_the_beam_keeps_the_best_states():
    runs = [await searched(TreeSettings("beam", samples=6, width=1), seed=seed) for seed in range(10)]
    # Each step fails to draw a 1 in six samples with probability 2^-6.
    assert np.mean([run.best.return_ for run in runs]) > 0.7
    assert {run.usage["policy"].calls for run in runs} == {6 * LENGTH}


async def test_a_beam_of_width_two_expands_two_states():
    run = await searched(TreeSettings("beam", samples=4, width=2), success=math.inf)
    # The root, then two states per step (a coin has two sides, so four samples of a state rarely agree).
    assert run.usage["policy"].calls in {4 + 4 * n for n in range(LENGTH, 2 * LENGTH)}
    assert all(trajectory.done for trajectory in run.population.trajectories)


async def test_a_beam_closes_the_worlds_of_states_that_it_gives_up():
    await searched(TreeSettings("beam", samples=6, width=1), success=math.inf)
    # The state that is kept and its sibling: a coin has two sides.
    assert CountedWorld.most_open == 2


async def test_equal_turns_become_one_child():
    run = await searched(TreeSettings("beam", samples=8, width=8), success=math.inf)
    actions = [tuple(step.action for step in each.steps) for each in run.population.trajectories]
    assert len(set(actions)) == len(actions) <= 2**LENGTH


async def test_mcts_spends_at_most_its_calls_and_stops_at_the_first_success():
    run = await searched(TreeSettings("mcts", samples=2, max_calls=50), pays=lambda actions: 0.0)
    assert run.usage["policy"].calls <= 50
    assert run.best.return_ == 0.0
    # Every state but one in 2^8 has both children, so that the critic's way leads to the success.
    run = await searched(TreeSettings("mcts", samples=9, max_calls=500), seed=1)
    assert run.best.return_ == 1.0
    assert run.usage["policy"].calls == 9 * LENGTH


class Misleading:
    """Predicts that zeros are good."""

    predicts = "return"

    async def values(self, trajectories):
        return np.array([np.mean([step.action == "0" for step in trajectory.steps]) for trajectory in trajectories])


async def test_returns_that_were_backed_up_correct_a_misleading_critic():
    solved = []
    for seed in range(10):
        run = await searched(TreeSettings("mcts", samples=3, max_calls=150), critic=Misleading(), seed=seed)
        solved.append(run.best.return_)
    beam = [await searched(TreeSettings("beam", samples=3), critic=Misleading(), seed=seed) for seed in range(10)]
    assert np.mean(solved) > 0.5 > np.mean([run.best.return_ for run in beam])


async def test_a_tree_that_is_exhausted_ends_and_has_closed_the_worlds_of_ended_episodes():
    run = await searched(TreeSettings("mcts", samples=30, max_calls=100_000), pays=lambda actions: 0.0)
    assert run.usage["policy"].calls == 30 * (2**LENGTH - 1)
    assert len(run.population.trajectories) == 2**LENGTH
    # The world of an ended episode is closed at once. Of each state on the way, its sibling is open; in the end, a
    # single state has both of its children.
    assert CountedWorld.most_open <= 2**LENGTH / 2 + 1


def test_a_state_below_which_nothing_is_left_is_not_selected_again():
    root = Node(Trajectory(TASK), (), None)
    better, other = (Node(Trajectory(TASK), (), None, root, value=value) for value in (0.9, 0.1))
    root.children = [better, other]
    assert _selected(root, 1.0) is better
    better.close()
    assert _selected(root, 1.0) is other
    assert not root.closed
    other.close()
    assert root.closed


async def test_the_horizon_truncates():
    run = await searched(TreeSettings("beam", samples=2, width=2), horizon=2)
    assert all((each.done, each.truncated, len(each.steps)) == (True, True, 2) for each in run.population.trajectories)


async def test_the_same_seed_gives_the_same_search():
    settings = TreeSettings("mcts", samples=2, max_calls=40)
    first, again, other = [await searched(settings, seed=seed, success=math.inf) for seed in (3, 3, 4)]
    assert first.population.trajectories == again.population.trajectories != other.population.trajectories


async def test_too_few_calls_for_an_episode_are_an_error():
    with pytest.raises(PopulationError, match="no episode ended within 4 calls"):
        await searched(TreeSettings("mcts", samples=2, max_calls=5))


def test_uct_is_the_mean_return_plus_exploration():
    root = Node(Trajectory(TASK), (), None)
    child = Node(Trajectory(TASK), (), None, root, value=0.9)
    for reached in (1.0, 0.0, 0.0):
        child.back_up(reached)
    assert child.value == root.value == pytest.approx(1 / 3)
    root.visits = 7
    assert child.uct(2.0) == pytest.approx(1 / 3 + 2 * math.sqrt(math.log(7) / 3))
    assert Node(Trajectory(TASK), (), None, root, value=0.9).uct(1.0) == pytest.approx(0.9 + math.sqrt(math.log(7)))


@pytest.mark.thorough
async def test_the_engine_compares_trees_with_particles(tmp_path):
    methods = [tree_of_thoughts(width=2, samples=4), lats(max_calls=40, samples=2), stopping(best_of_n())]
    comparison = comparison_of_coins(n_tasks=4, methods=methods)
    records = await compare(comparison, tmp_path)
    assert {record.method for record in records} == {"tot", "lats", "best-of-n-stop"}
    assert all(record.scores.deployable is None for record in records), "they see rewards"
    assert all(record.cost.policy_calls <= 40 for record in records if record.method == "lats")
    stored = comparison.method_settings
    assert stored["tot"]["tree"] == {
        "kind": "beam", "samples": 4, "width": 2, "max_calls": 200, "exploration": 1.0
    }  # fmt: skip
    assert (stored["best-of-n-stop"]["stop_at"], stored["best-of-n-stop"]["hide_rewards"]) == (1.0, False)
    assert await compare(comparison, tmp_path, resume=True) == records


async def test_a_seed_decides_a_run_of_the_engine():
    comparison = comparison_of_coins(n_tasks=1, methods=[lats(max_calls=40, samples=2)])
    runs = [(await run_one(comparison, 5, comparison.tasks[0], comparison.methods[0]))[1] for _ in range(2)]
    assert runs[0].population.trajectories == runs[1].population.trajectories


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigurationError, match="at least 1"):
        TreeSettings("beam", samples=0)
    with pytest.raises(ConfigurationError, match="max_calls=3 does not allow"):
        TreeSettings("mcts", samples=5, max_calls=3)
    assert GROUPS["trees"] == ("tot", "lats")
    assert [method.name for method in chosen([tree_of_thoughts(), lats()], ["trees"])] == ["tot", "lats"]
