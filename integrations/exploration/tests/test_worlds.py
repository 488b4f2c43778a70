import numpy as np
import pytest

from amc_agents.envs.registry import world, worlds
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.registered import WORDS_VARIABLE
from amc_agents_exploration.worlds import (
    CODES,
    TUNNELS,
    ExplorationWorld,
    bandit_task,
    episodes,
    informative_bandit_task,
    load_words,
    lock_task,
    plan,
    read_entered,
    read_payment,
    read_pull,
    read_swum,
    riverswim_task,
    usable_words,
    wordle_task,
)
from amc_agents_exploration.worlds.riverswim import dynamics
from amc_agents_exploration.worlds.wordle import WORDS

NAMES = ("bandit", "combination-lock", "informative-bandit", "riverswim", "riverswim-4", "wordle")
STOCHASTIC = ("bandit", "riverswim", "riverswim-4")


def task_of(name):
    return next(iter(world(name).tasks(1, "train", 3)))


async def played(task, actions):
    """The trajectory that a sequence of actions leads to."""
    place, trajectory = ExplorationWorld(), Trajectory(task)
    await place.reset(task)
    for action in actions:
        answer = await place.step(action)
        trajectory = trajectory.extended(Step(action, answer.observation, reward=answer.reward), done=answer.done)
    return trajectory


@pytest.mark.parametrize("name", NAMES)
async def test_the_contract_of_a_world_holds(name):
    task = task_of(name)
    n_steps = world(name).horizon
    # Up the river most of the time, or the last steps depend on nothing.
    actions = [getattr(task.payload, "upstream", task.payload.actions[0])] * n_steps
    await check_environment(world(name).make, task, actions, stochastic=name in STOCHASTIC)


@pytest.mark.parametrize("name", NAMES)
async def test_an_episode_takes_exactly_the_horizon_and_an_action_that_is_none_wastes_its_turn(name):
    found, task = world(name), task_of(name)
    assert name in worlds()
    trajectory = await played(task, ["what?"] * found.horizon)
    assert trajectory.done
    assert trajectory.return_ == 0
    assert task.payload.regret(trajectory) == pytest.approx(task.payload.optimal_value)
    assert found.n_episodes > 1


@pytest.mark.parametrize("name", NAMES)
def test_episodes_share_the_instance_and_differ_in_luck_alone(name):
    task = task_of(name)
    one, other = episodes(task, 2, first=4)
    assert one.instruction == other.instruction == task.instruction
    assert (one.payload.episode, other.payload.episode) == (4, 5)
    assert one.id != other.id
    assert one.payload.seed == other.payload.seed


def test_splits_and_seeds_give_different_instances():
    tasks = [lock_task(seed, split) for split in ("train", "test") for seed in range(50)]
    assert len({task.payload.answer for task in tasks}) > 80
    assert len({task.id for task in tasks}) == 100
    assert lock_task(7) == lock_task(7)


async def test_a_payload_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="expected a Task with an Instance payload, got NoneType"):
        await ExplorationWorld().reset(Task("x", "y"))


@pytest.mark.thorough
async def test_arms_pay_with_their_means():
    task = bandit_task(0)
    assert sorted(task.payload.means) == [0.4] * 4 + [0.6]
    assert task.payload.optimal_value == 0.6
    for arm, mean in zip(task.payload.arms, task.payload.means, strict=True):
        pulls = [await played(episode, [arm]) for episode in episodes(task, 1500)]
        paid = np.array([pull.return_ for pull in pulls])
        assert abs(paid.mean() - mean) < 4 * paid.std() / np.sqrt(1500)
        assert task.payload.regret(pulls[0]) == pytest.approx(0.6 - mean)
        assert read_pull(pulls[0].steps[0].observation) == (arm, int(paid[0]))
    # The same luck meets every arm: whoever plays the better arm never earns less in an episode.
    best, other = task.payload.arms[np.argmax(task.payload.means)], task.payload.arms[np.argmin(task.payload.means)]
    for episode in episodes(task, 50):
        assert (await played(episode, [best])).return_ >= (await played(episode, [other])).return_


async def test_arm_0_tells_the_best_arm():
    for seed in range(30):
        task = informative_bandit_task(seed)
        told = read_payment((await played(task, ["0"])).steps[0].observation)
        best = task.payload.best
        assert told[0] == 0
        assert round(1 / (2 * told[1])) == best
        assert (await played(task, [str(best)])).return_ == task.payload.optimal_value == 1
        other = await played(task, [str(best % 10 + 1)])
        assert other.return_ == 0
        assert task.payload.regret(other) == 1


async def test_the_lock_tells_of_each_digit_and_opens():
    task = next(task for task in map(lock_task, range(10_000)) if task.payload.answer == "273")
    trajectory = await played(task, "279")
    assert [read_entered(step.observation) for step in trajectory.steps] == [
        (0, "2", "right"), (1, "7", "right"), (2, "9", "absent")]  # fmt: skip
    assert trajectory.return_ == 0
    assert task.payload.regret(trajectory) == 1
    assert task.payload.regret(trajectory.prefix(2)) == 0
    assert trajectory.steps[-1].observation.endswith("stays shut.")
    trajectory = await played(task, "322")
    assert [read_entered(step.observation).feedback for step in trajectory.steps] == ["elsewhere"] * 3
    trajectory = await played(task, "273")
    assert trajectory.return_ == 1
    assert task.payload.regret(trajectory) == 0
    assert len(CODES) == 720
    assert read_entered((await played(task, ["27"])).steps[0].observation) is None


async def test_a_word_is_found_letter_by_letter():
    task = wordle_task(0, words=["crane", "CRATE", "eerie", "naïve", "cat"])
    assert task.payload.words == ("crane", "crate")
    word = task.payload.answer
    assert (await played(task, word.upper())).return_ == 1
    assert read_entered((await played(task, "e")).steps[0].observation) == (0, "e", "elsewhere")
    assert all(len(set(one)) == 5 for one in WORDS)
    assert len(WORDS) > 100


def test_a_word_list_comes_from_the_user(tmp_path, monkeypatch):
    path = tmp_path / "words"
    path.write_text("Table\nsleep\nchair\n")
    assert load_words(path) == ("chair", "table")
    monkeypatch.setenv(WORDS_VARIABLE, str(path))
    assert task_of("wordle").payload.words == ("chair", "table")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_words(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="five different letters"):
        usable_words(["sleep"])


def test_the_river_has_the_published_optimal_values():
    assert riverswim_task(0).payload.optimal_value == pytest.approx(1.3684, abs=5e-5)
    transitions, _ = dynamics(4)
    np.testing.assert_allclose(transitions.sum(axis=-1), 1)
    np.testing.assert_array_equal(transitions[1, 1], [0.05, 0.60, 0.35, 0])


def test_value_iteration_agrees_with_the_enumeration_of_all_policies():
    rng = np.random.default_rng(0)
    transitions, rewards = rng.dirichlet([1, 1], size=(2, 2)), rng.random((2, 2))
    best = np.zeros(2)
    for actions in np.ndindex(*(2,) * 6):  # one for each of 3 steps and 2 states
        policy = np.reshape(actions, (3, 2))
        values = np.zeros(2)
        for h in (2, 1, 0):
            values = np.array([rewards[s, policy[h, s]] + transitions[s, policy[h, s]] @ values for s in (0, 1)])
        best = np.maximum(best, values)
    np.testing.assert_allclose(plan(transitions, rewards, 3).values[0], best)


async def test_the_current_flows_as_told():
    task = riverswim_task(0)
    up, down = task.payload.upstream, next(one for one in TUNNELS if one != task.payload.upstream)
    assert {riverswim_task(seed).payload.upstream for seed in range(20)} == {"A", "B"}
    counts = np.zeros((3, 3))
    for episode in episodes(task, 600):
        trajectory = await played(episode, [up] * 6)
        for step in trajectory.steps:
            swum = read_swum(step.observation)
            counts[swum.cave - 1, swum.arrived - 1] += 1
            assert swum.reward == step.reward == float(swum.cave == 3)
    expected = dynamics(3).transitions[:, 1]
    n_left = counts.sum(axis=1, keepdims=True)
    assert (np.abs(counts / n_left - expected) <= 4 * np.sqrt(expected * (1 - expected) / n_left)).all()
    trajectory = await played(task, [up, down, down, down, down, down])
    assert [read_swum(step.observation).arrived for step in trajectory.steps[2:]] == [1] * 4
    assert trajectory.steps[-1].reward == 0.005


async def test_gaps_add_up_to_the_regret_of_the_policy():
    # Always downstream earns 0.005 in each of 6 steps; its regret has no luck in it.
    task = riverswim_task(1)
    down = next(one for one in TUNNELS if one != task.payload.upstream)
    trajectory = await played(task, [down] * 6)
    assert task.payload.regret(trajectory) == pytest.approx(task.payload.optimal_value - 0.03)
    # Always upstream: the mean gap is V* less the policy's own value.
    transitions, rewards = dynamics(3)
    value = np.zeros(3)
    for _ in range(6):
        value = rewards[:, 1] + transitions[:, 1] @ value
    regrets = [task.payload.regret(await played(one, [task.payload.upstream] * 6)) for one in episodes(task, 500)]
    error = np.std(regrets) / np.sqrt(500)
    assert abs(np.mean(regrets) - (task.payload.optimal_value - value[0])) < 4 * error + 1e-9
