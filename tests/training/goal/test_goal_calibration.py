"""Probabilities of reaching goals: a world whose chances are known, goals drawn independently or proposed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.goal.checkpoint import GoalCheckpoint
from amc_agents.critics.goal.critic import FunctionSummary, GoalValueCritic
from amc_agents.critics.reliability import calibration_error, clustered_mean, reliability
from amc_agents.errors import ConfigurationError
from amc_agents.pnlc.types import Proposed
from amc_agents.types import Step, Task, Trajectory

torch = pytest.importorskip("torch")

from amc_agents.training.goal.calibrating import (  # noqa: E402
    acalibrate_goal,
    calibrated,
    held_out,
    independent_triples,
)
from amc_agents.training.goal.train_goal import atrain_goal, fit  # noqa: E402
from amc_agents.training.goal.transitions import Episode, goal_data  # noqa: E402
from amc_agents.training.settings import GoalTrainingSettings  # noqa: E402

STATE = FunctionSummary(lambda one: one.steps[-1].observation if one.steps else one.task.instruction)
COINS = {"copper": 0.25, "silver": 0.5, "gold": 0.75}
FAST = GoalTrainingSettings(batch_size=256, learning_rate=3e-3, iterations=12, target_rate=0.05, discount=0.8)


def flips(n_tasks: int, each: int, seed: int = 0) -> list[Trajectory]:
    rng, found = np.random.default_rng(seed), []
    for number in range(n_tasks):
        coin = list(COINS)[number % len(COINS)]
        for _ in range(each):
            side = "heads" if rng.random() < COINS[coin] else "tails"
            found.append(Trajectory(Task(f"t{number}", coin), (Step("flip", side, "flip"),), done=True))
    return found


async def trained_and_calibrated(seed: int):
    """(q, calibrated q, report) for the three coins, with data, initial weights and draws of this seed."""
    training = await goal_data([Episode(episode) for episode in flips(30, 20, seed=2 * seed)], STATE)
    unseen = await goal_data([Episode(episode) for episode in flips(45, 60, seed=2 * seed + 1)], STATE)
    texts = [*COINS, "heads", "tails", "flip"]
    rows = {text: row for text, row in zip(texts, np.eye(len(texts), dtype=np.float32), strict=True)}
    vectors, new_vectors = (np.stack([rows[text] for text in data.texts]) for data in (training, unseen))
    network, _ = fit(training, vectors, FAST, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    triples = independent_triples(network, unseen, new_vectors, rng, 8000, 0.95)
    curve, report = calibrated(triples, "independent", 0.95, rng)
    thought, goal = (np.stack([rows[text]] * 3) for text in ("flip", "heads"))
    q = network.q(np.stack([rows[coin] for coin in COINS]), thought, goal)
    return q, curve(q), report


@pytest.mark.thorough
async def test_a_critic_trained_in_hindsight_predicts_true_probabilities_after_calibration():
    chances = np.array(list(COINS.values()))
    results = [await trained_and_calibrated(seed) for seed in range(3)]
    # Bounds: mean + 4.5 standard errors of three seeds. Over 24 seeds the mean (standard deviation) of the largest
    # optimism is .41 (.036), of the largest error of the curve .045 (.022), of the errors before .28 (.031) and
    # after .034 (.013).
    assert np.mean([np.max(q - chances) for q, _, _ in results]) > 0.32
    assert np.mean([np.abs(after - chances).max() for _, after, _ in results]) < 0.105
    assert np.mean([report.error_before for _, _, report in results]) > 0.2
    assert np.mean([report.error_after for _, _, report in results]) < 0.07
    for _, _, report in results:
        assert (report.goals, report.n_tasks) == ("independent", 45)
        assert report.error_after == pytest.approx(calibration_error(report.after))


class Proposer:
    def __init__(self):
        self.asked = []

    async def propose(self, trajectory, thought, n_positive, n_negative):
        self.asked.append((len(trajectory.steps), thought))
        return Proposed(("heads", "the moon"), ("tails", "a flood"))


@pytest.mark.thorough
async def test_goals_of_the_proposer_are_judged_by_their_outcome(tmp_path):
    trajectories, proposer = flips(30, 6), Proposer()
    await atrain_goal(trajectories, tmp_path, "hashed:32", FAST, summary=STATE)
    before = GoalCheckpoint.load(tmp_path)
    assert before.metrics["calibration"]["goals"] == "independent"
    found = await acalibrate_goal(tmp_path, trajectories, proposer=proposer, n_triples=400, summary=STATE)
    unseen = held_out(found, trajectories)
    assert len(unseen) == 36
    assert proposer.asked == [(0, "flip")] * 36
    report = found.metrics["calibration"]
    assert (report["goals"], report["n_triples"], report["n_tasks"]) == ("proposed", 4 * 36, 6)
    # One of the four is reached each time.
    assert report["reached"] == pytest.approx(0.25)
    assert GoalCheckpoint.load(tmp_path).calibration == found.calibration != before.calibration
    critic = GoalValueCritic(tmp_path, summary=STATE)
    likelihoods = await critic.reach(Trajectory(Task("new", "gold")), "flip", ["heads", "the moon"])
    assert likelihoods[0] > likelihoods[1] + 0.3


async def test_a_goal_is_reached_by_similarity_or_by_a_judge(tmp_path):
    trajectories = flips(12, 4)
    await atrain_goal(trajectories, tmp_path, "hashed:64", replace(FAST, iterations=1), summary=STATE)

    class Wordy:
        async def propose(self, *_):
            return Proposed(("heads heads tails", "heads"), ("tails", "tails up"))

    async def share(reached):
        found = await acalibrate_goal(tmp_path, trajectories, proposer=Wordy(), reached=reached, summary=STATE)
        return found.metrics["calibration"]["reached"], found.metrics["calibration"]["label"]

    exact = await share(1.0)
    assert exact == (pytest.approx(0.25), "cosine of at least 1.0")
    near, _ = await share(0.4)
    assert near > 0.3
    with pytest.raises(ConfigurationError, match="were reached"):
        await share(lambda goal, state: state != "gold" and state in ("heads", "tails"))


async def test_training_tasks_are_not_used_for_calibration(tmp_path):
    trajectories = flips(10, 2)
    checkpoint = await atrain_goal(trajectories, tmp_path, "hashed:16", replace(FAST, iterations=1), summary=STATE)
    unseen = {one.trajectory.task.id for one in held_out(checkpoint, trajectories)}
    assert len(unseen) == 2
    fresh = flips(5, 2, seed=9)
    assert [one.trajectory for one in held_out(checkpoint, fresh)] == fresh


async def test_data_without_a_possible_calibration_leaves_q_and_gives_the_reason(tmp_path):
    never = [Trajectory(Task(f"t{n}", f"start {n}"), (Step("go", f"end {n}", "go"),), done=True) for n in range(10)]
    found = await atrain_goal(never, tmp_path, "hashed:16", replace(FAST, iterations=1), summary=STATE)
    assert found.calibration is None
    assert "0 of" in found.metrics["calibration"]["none"]


def test_reliability_counts_tasks_and_keeps_ties_together():
    p = np.array([0.1] * 6 + [0.9] * 4)
    reached = np.array([1, 1, 1, 0, 0, 0, 1, 1, 1, 1])
    low, high = reliability(p, reached, np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3]), n_bins=3)
    assert (low.observed, low.n, high.observed, high.n) == (0.5, 6, 1.0, 4)
    # Two tasks that say the opposite, not six coins.
    assert low.standard_error == pytest.approx(0.5)
    assert high.standard_error == 0.0
    assert calibration_error([low, high]) == pytest.approx(0.6 * 0.4 + 0.4 * 0.1)
    assert clustered_mean(np.array([0.0, 1.0, 1.0, 0.0]), np.arange(4))[1] == pytest.approx(1 / np.sqrt(12))
