import asyncio
import shutil
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.calibration import AffineCalibration
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.hf import HFCritic
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError
from amc_agents.training.dataset import LoggedTrajectory, write_shard
from amc_agents.training.metrics import evaluate
from amc_agents.training.ranking import ranking
from amc_agents.training.score_file import score_metrics
from amc_agents.training.scoring import score, score_ranking, state_values
from amc_agents.training.settings import Objective
from amc_agents.types import Step, Task, Trajectory
from tests.critics.server.scripted_server import Reply, ScriptedServer
from tests.training.target_rows import target_rows

parquet = pytest.importorskip("pyarrow.parquet")


class Counting:
    """A critic of the user's own: the value of a state is its number of characters. It remembers what it was asked."""

    predicts = "return"

    def __init__(self):
        self.calls = []

    async def values(self, trajectories):
        self.calls.append(list(trajectories))
        return np.array([float(len(str(one.steps))) for one in trajectories])


def prefixes(trajectories):
    return [one.prefix(t) for one in trajectories for t in range(len(one.steps) + 1)]


def calibrated(trained, folder, max_tokens):
    """The trained model with a link and a calibration, read in windows of at most `max_tokens`."""
    shutil.copytree(trained.out, folder)
    shutil.copytree(folder / "adapter", folder / "shifted")
    checkpoint = ValueCheckpoint.load(folder)
    checkpoint = replace(
        checkpoint, max_tokens=max_tokens, scale=2.0, link="sigmoid", calibration=AffineCalibration(3.0, -0.5)
    )
    checkpoint.save(folder)
    checkpoint.save(folder / "shifted")
    return folder


@pytest.fixture
def dataset(tmp_path, trained):
    """Two shards, 23 trajectories of 8 tasks; the last one is not finished."""
    whole = trained.trajectories[:23]
    whole[-1] = whole[-1].prefix(1)
    records = [LoggedTrajectory(one, index % 5, "policy") for index, one in enumerate(whole)]
    write_shard(tmp_path / "data", records[:9])
    write_shard(tmp_path / "data", records[9:])
    return tmp_path / "data"


@pytest.mark.thorough
@pytest.mark.parametrize("max_tokens", [None, 90])
@pytest.mark.parametrize("kind", ["hf", "embedded"])
def test_one_pass_equals_the_critics_value_of_each_prefix(trained, tmp_path, kind, max_tokens):
    folder = calibrated(trained, tmp_path / "value", max_tokens)

    def critic():
        if kind == "hf":
            return HFCritic(folder, batch_size=5)
        return EmbeddedCritic(trained.base, folder / "shifted")

    # Of very different lengths, so that they are read in several batches; the last one is a copy.
    short, long = trained.trajectories[0].prefix(0), trained.trajectories[1]
    long = replace(long, steps=long.steps[:-1] * 4 + long.steps)
    chosen = [short, long, *trained.trajectories[2:40], trained.trajectories[3]]
    one_pass = critic()
    at_once = one_pass.state_values(chosen)
    assert [len(one) for one in at_once] == [len(one.steps) + 1 for one in chosen]
    windows = sum(len(one_pass.checkpoint.encoder(one_pass._tokenize).rows(one)) for one in chosen[:-1])
    assert one_pass.usage.calls == windows  # the copy costs nothing
    assert windows == 40 if max_tokens is None else windows > 40
    by_prefix = asyncio.run(critic().values(prefixes(chosen)))
    assert np.ptp(by_prefix) > 1.0
    assert by_prefix.min() >= -0.5  # 3 x 2 x sigmoid - 0.5
    np.testing.assert_allclose(np.concatenate(at_once), by_prefix, atol=1e-5)
    assert critic().state_values([]) == []


def test_the_file_contains_every_trajectory_in_order(dataset, trained, tmp_path):
    out = tmp_path / "values.parquet"
    seen = []
    score(f"hf:{trained.out}", dataset, out, per_part=4, progress=seen.append)
    rows = parquet.read_table(out).to_pylist()
    critic = HFCritic(trained.out)
    assert critic.predicts == "future"
    for index, (row, whole) in enumerate(zip(rows, trained.trajectories[:22], strict=False)):
        assert (row["task_id"], row["group"], row["policy"]) == (whole.task.id, index % 5, "policy")
        assert row["return"] == whole.return_
        assert row["values"] == pytest.approx(asyncio.run(critic.values(prefixes([whole]))).tolist(), abs=1e-5)
        assert row["targets"] == [whole.return_] * len(whole.steps) + [0.0]  # the reward comes with the last step
    assert len(rows) == 23
    assert (len(rows[-1]["values"]), rows[-1]["targets"]) == (2, None)
    assert [one.trajectories for one in seen] == [4, 8, 12, 16, 20, 23]
    assert {one.n_trajectories for one in seen} == {23}
    assert seen[-1].seconds_left == 0
    assert seen[0].seconds_left > 0
    assert all(one.states_per_second > 0 for one in seen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "values.parquet"]


def test_the_summary_is_that_of_training_over_finished_trajectories(dataset, trained, tmp_path):
    out = tmp_path / "values.parquet"
    score(f"hf:{trained.out}", dataset, out)
    critic = HFCritic(trained.out)
    whole = trained.trajectories[:22]
    rows = target_rows(whole, critic._encoder, Objective())
    found, expected = score_metrics(out), evaluate(rows, critic.state_values(whole))
    assert found.pop("auc_by_step") == expected.pop("auc_by_step")
    assert found == pytest.approx(expected)
    assert score_metrics(out)["pearson"] > 0.5
    assert score_metrics(out, success=2.0)["success_rate"] == 0.0


def test_a_score_file_says_whether_the_critic_ranks_siblings(dataset, trained, tmp_path):
    out = tmp_path / "values.parquet"
    score(f"hf:{trained.out}", dataset, out)
    whole = trained.trajectories[:23]
    values = HFCritic(trained.out).state_values([*whole[:22], whole[22].prefix(1)])
    report = score_ranking(out, dataset)
    assert report == ranking(zip([*whole[:22], whole[22].prefix(1)], values, strict=True), predicts="future")
    assert report.auc.mean > 0.8
    write_shard(dataset, [LoggedTrajectory(whole[0], 9)])
    with pytest.raises(CheckpointError, match="another dataset"):
        score_ranking(out, dataset)


def test_an_interrupted_call_resumes(dataset, trained, tmp_path):
    spec, out, whole = f"hf:{trained.out}", tmp_path / "values.parquet", tmp_path / "whole.parquet"

    def stop(progress):
        if progress.trajectories == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(spec, dataset, out, per_part=5, progress=stop)
    assert not out.exists()
    # What a kill in the middle of writing would leave:
    (tmp_path / "values.parquet.parts" / ".part-000002.parquet.1.unfinished").write_bytes(b"PAR1")
    seen = []
    with pytest.raises(ConfigurationError, match=r"critic was 'hf:.*', is 'HFCritic'"):
        score(HFCritic(trained.out), dataset, out, per_part=5)
    score(spec, dataset, out, per_part=5, progress=lambda progress: seen.append(progress.states_per_second > 0))
    assert seen == [False, False, True, True, True]
    score(spec, dataset, whole, per_part=5)
    assert parquet.read_table(out).equals(parquet.read_table(whole))
    assert not (tmp_path / "values.parquet.parts").exists()
    before = out.stat().st_mtime_ns
    score(spec, dataset, out, per_part=5)
    assert out.stat().st_mtime_ns == before


def test_values_of_another_scoring_are_not_touched(dataset, trained, tmp_path):
    out = tmp_path / "values.parquet"
    score(f"hf:{trained.out}", dataset, out)
    with pytest.raises(ConfigurationError, match="per_part was 256, is 7"):
        score(f"hf:{trained.out}", dataset, out, per_part=7)
    other = calibrated(trained, tmp_path / "other", None)
    with pytest.raises(ConfigurationError, match="checkpoint was"):
        score(f"hf:{other}", dataset, out)
    write_shard(dataset, [LoggedTrajectory(trained.trajectories[30], 0)])
    with pytest.raises(ConfigurationError, match="data was"):
        score(f"hf:{trained.out}", dataset, out)
    with pytest.raises(CheckpointError, match="was not written by `amc score`"):
        score(f"hf:{trained.out}", dataset, next(dataset.iterdir()))
    with pytest.raises(CheckpointError, match="no trajectories in"):
        score("uniform", tmp_path / "nowhere", tmp_path / "new.parquet")
    assert not (tmp_path / "new.parquet.parts").exists()
    assert parquet.read_metadata(out).num_rows == 23


def test_any_other_critic_scores_state_by_state(dataset, trained, tmp_path):
    critic = Counting()
    found = state_values(critic, trained.trajectories[:40])
    expected = [np.array([len(str(one.prefix(t).steps)) for t in range(len(one.steps) + 1)]) for one in
                trained.trajectories[:40]]  # fmt: skip
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    # Each call continues the prompts of the one before, of few trajectories side by side.
    first = trained.trajectories[:32]
    for state in range(max(len(one.steps) for one in first) + 1):
        assert critic.calls[state] == [one.prefix(state) for one in first if len(one.steps) >= state]
    score(critic, dataset, tmp_path / "values.parquet")
    rows = parquet.read_table(tmp_path / "values.parquet").to_pylist()
    assert rows[0]["values"] == expected[0].tolist()
    assert rows[0]["targets"] == [trained.trajectories[0].return_] * len(rows[0]["values"])  # it predicts the whole


async def test_a_served_model_scores_in_an_order_that_suits_its_prefix_cache(dataset, trained, tmp_path):
    scorer = EmbeddedCritic(trained.base, trained.out / "adapter")._scorer

    def answer(request):
        if request.path == "/v1/models":
            return Reply(body={"data": [{"id": "value", "max_model_len": 512}]})
        scores = scorer.values(request.body["input"])
        return Reply(body={"data": [{"index": index, "probs": [one]} for index, one in enumerate(scores.tolist())]})

    out = tmp_path / "values.parquet"
    async with ScriptedServer(answer) as server:
        await asyncio.to_thread(score, f"vllm:{server.url}?checkpoint={trained.out}", dataset, out)
        _, *waves = [request.body["input"][:-1] for request in server.asked("/classify")]
    expected = HFCritic(trained.out).state_values(trained.trajectories[:22])
    values = [row["values"] for row in parquet.read_table(out).to_pylist()]
    np.testing.assert_allclose(np.concatenate(values[:22]), np.concatenate(expected), atol=1e-5)
    longest = max(map(len, expected))
    assert len(waves) == longest
    for wave, before in zip(waves[1:], waves, strict=False):
        known = {tuple(prompt) for prompt in before}
        assert all(any(tuple(prompt[: len(one)]) == one for one in known) for prompt in wave)


def test_a_critic_without_values_is_refused(dataset, tmp_path):
    class OfGoals:
        async def reach(self, trajectory, thought, goals):
            return np.zeros(len(goals))

    class Broken:
        async def values(self, trajectories):
            return np.full(len(trajectories), np.nan)

    with pytest.raises(ConfigurationError, match="OfGoals does not value trajectories"):
        score(OfGoals(), dataset, tmp_path / "values.parquet")
    with pytest.raises(CriticError, match="Broken answered nan"):
        score(Broken(), dataset, tmp_path / "values.parquet")
    assert not (tmp_path / "values.parquet").exists()
    unfinished = Trajectory(Task("t", "x"), (Step("a"),))
    write_shard(tmp_path / "one", [LoggedTrajectory(unfinished, 0)])
    score("uniform", tmp_path / "one", tmp_path / "one.parquet")
    with pytest.raises(CheckpointError, match="no finished trajectory"):
        score_metrics(tmp_path / "one.parquet")
