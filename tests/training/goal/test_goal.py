"""Goals, transitions and targets; training from files to a critic. What Q must be is in test_goal_exact.py."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.goal.checkpoint import GoalCheckpoint, fit_calibration
from amc_agents.critics.goal.critic import FunctionSummary, GoalValueCritic
from amc_agents.critics.goal.embeddings import Embedded, HashedWords
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Usage

torch = pytest.importorskip("torch")

from amc_agents.training.dataset import LoggedTrajectory, write_shard  # noqa: E402
from amc_agents.training.goal.train_goal import atrain_goal, fit, train_goal  # noqa: E402
from amc_agents.training.goal.transitions import Episode, goal_data, read_episodes  # noqa: E402
from amc_agents.training.settings import GoalShares, GoalTrainingSettings  # noqa: E402

STATE = FunctionSummary(lambda one: one.steps[-1].observation if one.steps else one.task.instruction)


def episode(path: str, *, task: str = "t", truncated: bool = False) -> Episode:
    """ "a walk b leap c": state, thought, state, thought, state."""
    words = path.split()
    steps = [
        Step("-", observation=state, thought=thought) for thought, state in zip(words[1::2], words[2::2], strict=True)
    ]
    return Episode(Trajectory(Task(task, words[0]), tuple(steps), done=True), truncated)


def one_hot(data):
    return np.eye(len(data.texts), dtype=np.float32)


def q_of(network, data, state, thought, goal):
    hot = one_hot(data)
    rows = [hot[[data.texts.index(text)]] for text in (state, thought, goal)]
    return float(network.q(*rows)[0])


def v_of(network, data, state, goal):
    hot = one_hot(data)
    return float(network.v(*(hot[[data.texts.index(text)]] for text in (state, goal)))[0])


FAST = GoalTrainingSettings(
    discount=0.8, batch_size=128, learning_rate=3e-3, iterations=40, updates=50, target_rate=0.05, weight_decay=0.0
)


@pytest.mark.thorough
async def test_q_is_gamma_to_the_actions_left():
    line = "s0 go s1 go s2 go s3 go s4 go s5 go s6"
    data = await goal_data([episode(line), episode(line)], STATE)
    network, history = fit(data, one_hot(data), FAST, np.random.default_rng(0))
    for i in range(6):
        for j in range(i + 1, 7):
            assert q_of(network, data, f"s{i}", "go", f"s{j}") == pytest.approx(0.8 ** (j - i - 1), abs=0.05), (i, j)
        for j in range(i):
            assert q_of(network, data, f"s{i}", "go", f"s{j}") == pytest.approx(0.0, abs=0.05), (i, j)
    assert v_of(network, data, "s3", "s3") == pytest.approx(1.0, abs=0.05)
    assert history[-1]["q_loss"] < 0.1 * history[0]["q_loss"]


@pytest.mark.thorough
async def test_the_expectile_leans_towards_the_better_thought():
    # Half of the thoughts at s reach the goal: V is tau, and the step before it gamma times that.
    paths = ["a go s good g", "a go s bad x"]
    data = await goal_data([episode(path) for path in paths * 2], STATE)
    found = {}
    for expectile in (0.5, 0.8):
        # Goals independent of the trajectory, as near as can be: hindsight would lean on its own.
        settings = replace(FAST, expectile=expectile, shares=GoalShares(1e-6, 1.0, 0.0))
        network, _ = fit(data, one_hot(data), settings, np.random.default_rng(0))
        found[expectile] = v_of(network, data, "s", "g"), q_of(network, data, "a", "go", "g")
    # Of three other trajectories two (one) lie on the other side, so the goal is met by chance (1, 2) times in three.
    plain = np.average([1.0, 0.0], weights=[1, 2])
    leaning = np.average([1.0, 0.0], weights=[0.8 * 1, 0.2 * 2])
    assert found[0.5][0] == pytest.approx(plain, abs=0.04)
    assert found[0.8][0] == pytest.approx(leaning, abs=0.04)
    assert found[0.8][1] == pytest.approx(0.8 * leaning, abs=0.05)


@pytest.mark.thorough
async def test_goals_picked_in_hindsight_make_q_optimistic_and_calibration_corrects_it():
    rng = np.random.default_rng(0)
    chance = 0.3
    heads = rng.permutation(np.arange(400) < 400 * chance)
    data = await goal_data([episode(f"coin flip {'heads' if head else 'tails'}") for head in heads], STATE)
    q = {}
    for future in (0.5, 0.01):
        settings = replace(FAST, batch_size=512, iterations=10, shares=GoalShares(future, 1.0 - future, 0.0))
        network, _ = fit(data, one_hot(data), settings, np.random.default_rng(0))
        q[future] = q_of(network, data, "coin", "flip", "heads")
    # Random goals are heads, tails, or (half of the states) the start, which nothing reaches.
    asked = {future: (future + (1 - future) * chance / 2) / (future + (1 - future) / 2) for future in q}
    assert q[0.5] == pytest.approx(asked[0.5], abs=0.04)
    assert q[0.5] > chance + 0.3
    assert q[0.01] == pytest.approx(asked[0.01], abs=0.04)
    tosses = rng.random(2000) < chance
    tails = q_of(network, data, "coin", "flip", "tails")
    calibration = fit_calibration([*[q[0.01]] * 2000, *[tails] * 2000], [*tosses, *~tosses])
    assert calibration(np.array([q[0.01]]))[0] == pytest.approx(chance, abs=0.03)


async def test_the_last_transition_pays_only_as_it_ended():
    data = await goal_data([episode("a go b stay c"), episode("a go b stay d", truncated=True)], STATE)
    index = {text: number for number, text in enumerate(data.texts)}
    transitions = np.array([0, 1, 1, 1, 3, 3, 2, 3])
    goals = np.array([index[text] for text in ("c", "c", "d", "b", "d", "c", "c", "b")])
    batch = data.batch(transitions, goals)
    said = [
        (bool(reached), bool(ended), bool(already), bool(kept))
        for _, _, _, _, reached, ended, already, kept in zip(*batch, strict=True)
    ]
    assert said == [
        (False, False, False, True),  # a -> b on the way to c: bootstraps
        (True, True, False, True),  # b -> c is c
        (False, True, False, True),  # c is terminal and not d: 0
        (False, True, True, True),  # b is the goal already
        (True, True, False, True),  # cut, but d is reached
        (False, True, False, False),  # cut short of c: nothing is known
        (False, False, False, True),  # a -> b of the trajectory that is cut later
        (False, True, True, True),  # V(g, g) = 1 is known, cut or not
    ]


async def test_goals_come_from_where_the_shares_say():
    episodes = [episode("a0 go a1 go a2 go a3"), episode("b0 go b1"), episode("c0 go c1 go c2")]
    data = await goal_data(episodes, STATE)
    rng = np.random.default_rng(0)
    later = data.later(rng, np.zeros(40_000, dtype=np.int64), 0.5)
    assert np.bincount(later)[1:] / len(later) == pytest.approx(np.array([4, 2, 1]) / 7, abs=0.01)
    elsewhere = data.elsewhere(rng, np.full(40_000, 4))
    counts = np.bincount(elsewhere, minlength=9) / len(elsewhere)
    assert counts == pytest.approx([1 / 7] * 4 + [0, 0] + [1 / 7] * 3, abs=0.01)
    batch = data.sample(rng, 20_000, GoalShares(0.5, 0.3, 0.2), 0.9)
    assert batch.already.mean() == pytest.approx(0.2, abs=0.01)
    # A goal of the same trajectory that is not the state itself is a future one.
    own = [data.texts[goal][0] == data.texts[state][0] for state, goal in zip(batch.state, batch.goal, strict=True)]
    assert np.mean(own) == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("shares", [(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.6, -0.1)])
def test_a_share_of_zero_is_refused(shares):
    with pytest.raises(ConfigurationError, match="goal shares are future"):
        GoalShares(*shares)


def test_an_unfinished_trajectory_counts_as_truncated(tmp_path):
    rows = [
        {
            "task": "one",
            "messages": [
                {"role": "user", "content": "find it"},
                {"role": "assistant", "content": "Thought: look\nAction: open"},
                {"role": "user", "content": "a box"},
                {
                    "role": "assistant",
                    "content": "take it",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "take", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "1", "content": "taken"},
            ],
        },
        {"truncated": True, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first, second = read_episodes(tmp_path)
    assert [(step.thought, step.observation) for step in first.trajectory.steps] == [
        ("look", "a box"),
        ("take it", "taken"),
    ]
    assert (first.trajectory.task.id, first.truncated) == ("one", False)
    assert (second.trajectory.task.id, second.truncated) == ("hi", True)
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows[1:]), tmp_path / "own.parquet")
    assert read_episodes(tmp_path / "own.parquet") == [second]
    (tmp_path / "own.jsonl").write_text('{"text": "hello"}')
    with pytest.raises(CheckpointError, match=re.escape("own.jsonl line 1 is not a conversation")):
        read_episodes(tmp_path / "own.jsonl")


def test_a_collected_trajectory_as_long_as_its_horizon_counts_as_truncated(tmp_path):
    pytest.importorskip("pyarrow")
    settings = json.dumps({"horizon": 3})
    records = [LoggedTrajectory(episode("a go b" + " go c" * n).trajectory, n, settings=settings) for n in range(4)]
    write_shard(tmp_path, records)
    assert [one.truncated for one in read_episodes(tmp_path)] == [False, False, True, True]
    assert not any(one.truncated for one in read_episodes(tmp_path, horizon_ends=True))


class Counted:
    """Hashed words that count, and fail where told to."""

    def __init__(self, fail_after=None):
        self.spec, self.asked, self._fail_after = "counted", [], fail_after

    async def embed(self, texts):
        if self._fail_after is not None and len(self.asked) >= self._fail_after:
            raise ConnectionError("gone")
        self.asked += texts
        return Embedded((await HashedWords(64).embed(texts)).vectors, Usage(calls=1))


SMALL = GoalTrainingSettings(iterations=4, updates=10)


def test_training_writes_a_critic_that_reaches(toy_trajectories, tmp_path):
    trajectories = toy_trajectories(12, 4)
    seen = []
    checkpoint = train_goal(trajectories, tmp_path / "goal", "hashed:64", SMALL, progress=seen.append)
    assert GoalCheckpoint.load(tmp_path / "goal").metrics == json.loads(json.dumps(checkpoint.metrics))
    assert [one.done for one in seen] == [1, 2, 3, 4]
    assert (checkpoint.embeddings, checkpoint.dimensions, checkpoint.summary) == ("hashed:64", 64, "none")
    assert 0 <= checkpoint.metrics["auc"] <= 1


@pytest.mark.thorough
async def test_each_text_is_embedded_once_despite_interruptions(toy_trajectories, tmp_path):
    trajectories, cache = toy_trajectories(60, 4), tmp_path / "cache.sqlite"
    broken, whole, third = Counted(fail_after=512), Counted(), Counted()
    with pytest.raises(ConnectionError):
        await atrain_goal(trajectories, tmp_path / "goal", broken, SMALL, cache=cache)
    assert not (tmp_path / "goal").exists()
    await atrain_goal(trajectories, tmp_path / "goal", whole, SMALL, cache=cache)
    assert len(broken.asked) == 512
    assert set(broken.asked).isdisjoint(whole.asked)
    assert len(whole.asked) == len(set(whole.asked))
    await atrain_goal(trajectories, tmp_path / "goal", third, SMALL, cache=cache)
    assert third.asked == []


def told(n_tasks: int) -> list[Trajectory]:
    """What a thought names is what is found two steps later."""
    rng, found = np.random.default_rng(0), []
    items = ["clay", "silk", "flint", "bone", "coal", "kelp", "jade", "moss"]
    for number in range(n_tasks):
        for _ in range(4):
            item, other = (str(word) for word in rng.choice(items, 2, replace=False))
            path = [Step("dig", "a hole", f"dig for {item}"), Step("dig", f"found {item}", "deeper")]
            path.append(Step("leave", "home", f"away from {other}"))
            found.append(Trajectory(Task(f"t{number}", "dig"), tuple(path), done=True))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("twin", "nearness"), [(False, True), (True, False)])
async def test_it_learns_what_a_thought_leads_to(tmp_path, twin, nearness):
    settings = GoalTrainingSettings(iterations=40, learning_rate=2e-3, twin=twin, nearness=nearness, discount=0.9)
    checkpoint = await atrain_goal(told(40), tmp_path, "hashed:128", settings)
    assert checkpoint.metrics["auc"] > 0.8
    critic = GoalValueCritic(tmp_path)
    goals = ["found silk", "found bone", "found coal"]
    reached = await critic.reach(Trajectory(Task("new", "dig")), "dig for bone", goals)
    assert reached.argmax() == 1
    assert reached[1] > 2 * max(reached[0], reached[2])


@pytest.mark.thorough
def test_the_command_trains_and_says_what_to_do_next(toy_trajectories, tmp_path):
    pytest.importorskip("pyarrow")
    from typer.testing import CliRunner

    from amc_agents.cli.commands import app

    write_shard(tmp_path / "data", [LoggedTrajectory(one, n) for n, one in enumerate(toy_trajectories(10, 3))])
    arguments = ["train", "goal", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "goal")]
    done = CliRunner().invoke(app, [*arguments, "--embeddings", "hashed:32", "--iterations", "2"])
    assert done.exit_code == 0, done.output
    assert "AUC" in done.output
    assert "parse_critic" in done.output
    assert GoalCheckpoint.load(tmp_path / "goal").embeddings == "hashed:32"
    told = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "again"), "--iterations", "2", "--json"])
    assert json.loads(told.stdout)["metrics"]["trajectories"] > 0
    refused = CliRunner().invoke(app, [*arguments, "--random", "0"])
    assert isinstance(refused.exception, ConfigurationError)
