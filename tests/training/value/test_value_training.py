from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.errors import ConfigurationError
from amc_agents.training.data_checks import split_by_task
from amc_agents.training.fine_tuning import make_encoder
from amc_agents.training.metrics import auc, evaluate
from amc_agents.training.settings import Objective
from amc_agents.training.value.row_building import build_rows
from amc_agents.training.value.train_value import EMBEDDED, ValueTrainingSettings, train_value
from amc_agents.types import Step, Task, Trajectory
from tests.training.target_rows import row_values, target_rows


@pytest.mark.parametrize("max_tokens", [512, 90])
def test_one_pass_over_a_trajectory_gives_the_values_of_every_prefix(trained, max_tokens):
    model = AutoModelForSequenceClassification.from_pretrained(trained.out).eval()
    encoder = make_encoder(AutoTokenizer.from_pretrained(trained.out), DIALOGUE, max_tokens)
    chosen = trained.trajectories[:8]
    rows = target_rows(chosen, encoder)
    assert len(rows) == len(chosen) if max_tokens == 512 else len(rows) > len(chosen)
    at_once = np.concatenate(row_values(model, rows))
    one_by_one = []
    for trajectory in chosen:
        for t in range(len(trajectory.steps) + 1):
            ids = [token for segment in encoder.newest(trajectory.prefix(t)) for token in segment]
            with torch.no_grad():
                one_by_one.append(float(model(input_ids=torch.tensor([ids])).logits[0, 0]))
    assert np.ptp(one_by_one) > 0.1
    np.testing.assert_allclose(at_once, one_by_one, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's, not ours
def test_the_unmerged_adapter_the_merged_folder_and_training_agree(trained):
    from peft import PeftModel

    base = AutoModelForSequenceClassification.from_pretrained(trained.base, num_labels=1)
    base.config.pad_token_id = 1
    unmerged = PeftModel.from_pretrained(base, trained.out / "adapter").eval()
    merged = AutoModelForSequenceClassification.from_pretrained(trained.out).eval()
    encoder = make_encoder(AutoTokenizer.from_pretrained(trained.out), DIALOGUE, 512)
    _, validation = split_by_task(trained.trajectories, 0.2, np.random.default_rng(0))
    rows = target_rows(validation, encoder)
    one, other = row_values(unmerged, rows), row_values(merged, rows)
    np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), atol=1e-5)
    assert evaluate(rows, one)["loss"] == pytest.approx(trained.checkpoint.metrics["loss"], abs=1e-6)


def test_training_learns_a_learnable_problem(trained):
    metrics = trained.checkpoint.metrics
    by_step = metrics["auc_by_step"]
    assert by_step[1] > 0.95
    assert by_step[0] < 0.8  # nothing is observed yet
    assert metrics["pearson"] > 0.6
    assert metrics["loss"] < 0.7 * metrics["baseline_loss"]
    assert ValueCheckpoint.load(trained.out).metrics["auc_by_step"] == {str(t): one for t, one in by_step.items()}


@pytest.mark.thorough
def test_shuffled_targets_teach_nothing(trained, base_model, tmp_path):
    settings = replace(EMBEDDED, epochs=6, shuffle_targets=True)
    control = train_value(base_model, trained.trajectories, tmp_path, settings).metrics
    assert abs(control["auc"] - 0.5) < 0.2
    assert control["loss"] > 0.8 * control["baseline_loss"]


@pytest.mark.thorough
def test_the_result_depends_on_the_seed_only(base_model, tmp_path, toy_trajectories):
    trajectories = toy_trajectories(10, 3)

    def scores(seed: int, name: str) -> list[float]:
        torch.manual_seed(len(name))  # torch's global state must not matter
        settings = replace(EMBEDDED, epochs=1, seed=seed)
        return [one.score for one in train_value(base_model, trajectories, tmp_path / name, settings).golden]

    assert scores(1, "a") == scores(1, "bb")
    assert scores(1, "c") != scores(2, "dd")


@pytest.mark.thorough
def test_progress_is_reported_after_each_step(base_model, tmp_path, toy_trajectories):
    seen = []
    settings = replace(EMBEDDED, epochs=2, batch_size=8)
    train_value(base_model, toy_trajectories(10, 3), tmp_path, settings, progress=seen.append)
    assert [one.step for one in seen] == list(range(1, 7))  # 8 tasks x 3 trajectories in batches of 8, twice
    assert {one.steps for one in seen} == {6}


@pytest.mark.thorough
def test_keep_best_keeps_the_lowest_validation_loss(base_model, tmp_path, toy_trajectories):
    settings = replace(EMBEDDED, epochs=5, learning_rate=3e-2, keep_best=True)
    metrics = train_value(base_model, toy_trajectories(12, 3), tmp_path, settings).metrics
    least = min(epoch["validation_loss"] for epoch in metrics["epochs"])
    assert metrics["loss"] == pytest.approx(least, rel=0.02)  # rounding to half precision


def test_the_return_still_to_come_is_the_target_and_nothing_remains_at_the_end(trained):
    encoder = make_encoder(AutoTokenizer.from_pretrained(trained.base), DIALOGUE, None)
    steps = (Step("a", reward=0.5), Step("b"), Step("c", reward=1.0))
    whole = Trajectory(Task("t", "x"), steps, done=True)
    (row,) = target_rows([whole], encoder)
    assert row.targets == (1.5, 1.0, 1.0, 0.0)
    assert row.final == (False, False, False, True)
    assert target_rows([whole], encoder, Objective(target="return"))[0].targets == (1.5,) * 4
    with pytest.raises(ConfigurationError, match="'t' is not done"):
        target_rows([whole, whole.prefix(1)], encoder)


def test_shuffling_keeps_the_targets_of_each_step(trained, tmp_path):
    encoder = make_encoder(AutoTokenizer.from_pretrained(trained.base), DIALOGUE, None)
    rows = build_rows(trained.trajectories, tmp_path, encoder, tokenizer="test")
    shuffled = rows.with_shuffled_targets(np.random.default_rng(0))

    def of(step, from_rows):
        return sorted(row.targets[step] for row in from_rows if len(row.targets) > step)

    assert all(of(step, rows) == of(step, shuffled) for step in range(5))
    assert [row.targets for row in rows] != [row.targets for row in shuffled]


def test_shuffled_targets_do_not_reveal_success(trained, tmp_path):
    encoder = make_encoder(AutoTokenizer.from_pretrained(trained.base), DIALOGUE, None)
    won = Trajectory(Task("t", "x"), (Step("a"), Step("b", reward=1.0)), done=True)
    lost = Trajectory(Task("t", "x"), (Step("a"), Step("c"), Step("d")), done=True)
    rows = build_rows([won, lost] * 20, tmp_path, encoder, Objective(target="return"), tokenizer="test")
    shuffled = rows.with_shuffled_targets(np.random.default_rng(0))
    at_success = [row.targets[2] for row in shuffled if row.final[2]]
    assert len(at_success) == 20
    assert 0.2 < np.mean(at_success) < 0.8


def test_validation_shares_no_task_with_training(toy_trajectories):
    trajectories = toy_trajectories(10, 3)
    training, validation = split_by_task(trajectories, 0.2, np.random.default_rng(0))
    names = [{one.task.id for one in part} for part in (training, validation)]
    assert [len(part) for part in names] == [8, 2]
    assert not names[0] & names[1]
    assert len(training) + len(validation) == 30
    with pytest.raises(ConfigurationError, match="holds out 0"):
        split_by_task(trajectories[:3], 0.2, np.random.default_rng(0))


def test_auc_counts_ties_half_and_needs_both_kinds():
    values = np.array([0.3, 0.3, 0.1, 0.9, 0.3])
    success = np.array([1, 0, 0, 1, 0])
    pairs = [(p, n) for p in values[success == 1] for n in values[success == 0]]
    assert auc(values, success) == pytest.approx(np.mean([(p > n) + 0.5 * (p == n) for p, n in pairs]))
    assert auc(values, np.ones(5)) is None


def test_the_defaults_are_those_of_the_paper():
    settings = ValueTrainingSettings()
    assert (settings.learning_rate, settings.epochs, settings.warm_up, settings.max_grad_norm) == (1e-5, 3, 0.1, 1.0)
    assert (settings.lora_rank, settings.lora_alpha, settings.validation_share) == (8, 16, 0.2)
