from functools import cache

import numpy as np
import pytest

from amc_agents.envs.registry import world
from amc_agents.errors import ConfigurationError
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.episodic import play_episode
from amc_agents_exploration.exact import (
    BestArm,
    ClassicInformationDirected,
    ClassicPosteriorSampling,
    ConsistentSequences,
    exact_model,
)
from amc_agents_exploration.worlds import (
    ExplorationWorld,
    bandit_task,
    episodes,
    informative_bandit_task,
    lock_task,
    read_swum,
    riverswim_task,
    wordle_task,
)
from amc_agents_exploration.worlds.riverswim import dynamics


async def trial(task, agent, n_episodes, seed, horizon):
    rng = np.random.default_rng([11, seed])
    return [
        await play_episode(ExplorationWorld(), episode, agent, rng, horizon=horizon)
        for episode in episodes(task, n_episodes)
    ]


async def regrets(name, n_trials, make):
    """`[n_trials, n_episodes]`, each trial with an instance of its own."""
    spec, rows = world(name), []
    for seed, task in enumerate(spec.tasks(n_trials, "test", 0)):
        played = await trial(task, make(task), spec.n_episodes, seed, spec.horizon)
        rows.append([task.payload.regret(trajectory) for trajectory in played])
    return np.array(rows)


def posterior_sampling(task):
    return ClassicPosteriorSampling(exact_model(task))


def standard_error(numbers):
    return np.std(numbers, ddof=1) / np.sqrt(len(numbers))


@pytest.mark.thorough
async def test_thompson_sampling_has_sub_linear_regret_on_the_bandit():
    per_episode = await regrets("bandit", 300, posterior_sampling)
    quarters = per_episode.reshape(300, 4, 25).mean(axis=2)
    assert quarters[:, 0].mean() == pytest.approx(0.142, abs=0.01)  # 0.16 for a random arm
    fall = quarters[:, :-1] - quarters[:, 1:]
    assert (fall.mean(axis=0) > 3 * np.apply_along_axis(standard_error, 0, fall)).all()
    total = per_episode.sum(axis=1)
    assert abs(total.mean() - thompson_in_one_array(3000).mean()) < 4 * standard_error(total)


def thompson_in_one_array(n_trials):
    """The same algorithm written again, all trials at once: `[n_trials]` regret after 100 pulls."""
    rng = np.random.default_rng(1)
    counts, wins = np.zeros((n_trials, 5)), np.zeros((n_trials, 5))
    regret = np.zeros(n_trials)
    for _ in range(100):
        arm = rng.beta(1 + wins, 1 + counts - wins).argmax(axis=1)
        paid = rng.random(n_trials) < np.where(arm == 0, 0.6, 0.4)
        regret += np.where(arm == 0, 0, 0.2)
        counts[np.arange(n_trials), arm] += 1
        wins[np.arange(n_trials), arm] += paid
    return regret


@pytest.mark.thorough
async def test_tabular_psrl_has_sub_linear_regret_on_the_river():
    per_episode = await regrets("riverswim", 100, posterior_sampling)
    early, late = per_episode[:, :8].mean(axis=1), per_episode[:, -8:].mean(axis=1)
    assert early.mean() > 0.7
    assert late.mean() + 4 * standard_error(late) < early.mean() / 4


async def test_psrl_learns_the_river():
    task = riverswim_task(2)
    agent = posterior_sampling(task)
    played = await trial(task, agent, 60, 0, 6)
    seen = [read_swum(step.observation) for trajectory in played for step in trajectory.steps]
    up = task.payload.upstream
    leads = agent.posterior.parts[f"tunnel {up} in cave 1 leads to"]
    taken = [swum.arrived for swum in seen if (swum.cave, swum.tunnel) == (1, up)]
    assert leads.counts == pytest.approx([1 / 3 + taken.count(cave) for cave in (1, 2, 3)])
    assert str(agent.posterior.parts[f"tunnel {up} in cave 3 earns"]) == "Uniform over {1}"


async def test_exact_ids_asks_arm_0_and_then_knows():
    for seed in range(30):
        task = informative_bandit_task(seed)
        played = await trial(task, ClassicInformationDirected(BestArm()), 5, seed, 1)
        assert [trajectory.steps[0].action for trajectory in played] == ["0", *[str(task.payload.best)] * 4]
    # Thompson sampling never asks: it tries the ten arms one by one, 4.5 of them in vain.
    total = (await regrets("informative-bandit", 300, posterior_sampling)).sum(axis=1)
    assert abs(total.mean() - 4.5) < 4 * standard_error(total)


@cache
def expected_failures(answers, n_episodes):
    """Of exact posterior sampling, by enumeration: each guess is as likely as each answer."""
    if len(answers) == 1 or n_episodes == 0:
        return 0.0
    total = 0.0
    for guess in answers:
        groups = {}
        for answer in answers - {guess}:
            pattern = tuple(
                2 * (letter == right) + (letter in answer) for letter, right in zip(guess, answer, strict=True)
            )
            groups.setdefault(pattern, set()).add(answer)
        total += sum(
            len(group) * (1 + expected_failures(frozenset(group), n_episodes - 1)) for group in groups.values()
        )
    return total / len(answers) ** 2


async def test_posterior_sampling_finds_words_as_fast_as_enumeration_says():
    words = wordle_task(0).payload.words[::4]
    expected = expected_failures(frozenset(words), 6)
    failed = []
    for seed in range(400):
        task = wordle_task(seed, words=words)
        played = await trial(task, posterior_sampling(task), 6, seed, 5)
        failed.append(6 - sum(trajectory.return_ for trajectory in played))
    assert abs(np.mean(failed) - expected) < 4 * standard_error(failed)


@pytest.mark.parametrize("make", [bandit_task, informative_bandit_task, lock_task, riverswim_task, wordle_task])
async def test_the_policy_for_the_truth_has_no_regret(make):
    task = make(5)
    instance, model = task.payload, exact_model(task)
    truth: object
    match make.__name__:
        case "bandit_task":
            truth = dict(zip(model.prior(task).parts, instance.means, strict=True))
        case "informative_bandit_task":
            truth = str(instance.best)
        case "riverswim_task":
            truth = true_river(instance)
        case _:
            truth = instance.answer

    class Known(ClassicPosteriorSampling):
        async def begin(self, task, rng):
            await super().begin(task, rng)
            self._policy = model.policy(task, truth)

    played = await trial(task, Known(model), 20, 0, 6)
    assert sum(instance.regret(trajectory) for trajectory in played) == pytest.approx(0, abs=1e-12)


def true_river(instance):
    truth: dict[str, object] = {}
    transitions, rewards = dynamics(3)
    for cave in range(3):
        for tunnel in "AB":
            move = int(tunnel == instance.upstream)
            chances = {f"cave {to + 1}": transitions[cave, move, to] for to in range(3)}
            truth[f"tunnel {tunnel} in cave {cave + 1} leads to"] = chances
            truth[f"tunnel {tunnel} in cave {cave + 1} earns"] = f"{rewards[cave, move]:g}"
    return truth


async def test_the_same_seed_gives_the_same_actions():
    for make in (bandit_task, riverswim_task):
        task = make(1)
        first, again = [await trial(task, posterior_sampling(task), 10, 3, 6) for _ in range(2)]
        other = await trial(task, posterior_sampling(task), 10, 4, 6)
        assert first == again
        assert first != other


async def test_a_lost_turn_changes_no_posterior_and_no_policy_fails():
    for make in (bandit_task, informative_bandit_task, lock_task, riverswim_task):
        task = make(0)
        place, model = ExplorationWorld(), exact_model(task)
        await place.reset(task)
        told = await place.step("I do not know")
        step = Step("I do not know", told.observation, reward=told.reward)
        prior = model.prior(task)
        assert model.updated(prior, step) == prior
        trajectory = Trajectory(task).extended(step)
        if not told.done:
            assert model.policy(task, prior.sample(np.random.default_rng(0)))(trajectory) in task.payload.actions


async def test_an_agent_can_start_from_a_posterior():
    task = lock_task(0)
    knowing = ConsistentSequences().prior(task).observed(task.payload.answer)
    played = await trial(task, ClassicPosteriorSampling(ConsistentSequences(), knowing), 1, 0, 3)
    assert played[0].return_ == 1


def test_a_world_without_a_model_is_refused():
    with pytest.raises(ConfigurationError, match="has no exact model"):
        exact_model(Task("crafting/train/0", "Goal: craft x."))
