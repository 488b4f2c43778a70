"""The golden scores under typical faults are the scores that those faults give."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification

from amc_agents.critics.saved import BFLOAT16, FIRST_TOKEN_POOLING, MEAN_POOLING, WITHOUT_ADAPTER
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.hf import HFCritic
from amc_agents.errors import CheckpointError
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.training.value.saving import GoldenPrompt, golden_scores


@pytest.fixture
def merged(trained):
    return AutoModelForSequenceClassification.from_pretrained(trained.out).eval()


def test_pooled_scores_are_those_of_the_pooled_hidden_states(trained, merged):
    for one in trained.checkpoint.golden:
        with torch.no_grad():
            hidden = merged.model(input_ids=torch.tensor([one.token_ids])).last_hidden_state[0]
            for fault, pooled in ((MEAN_POOLING, hidden.mean(0)), (FIRST_TOKEN_POOLING, hidden[0])):
                assert one.faults[fault] == pytest.approx(float(merged.score(pooled)[0]), abs=1e-5)
            assert one.score == pytest.approx(float(merged.score(hidden[-1])[0]), abs=1e-5)


async def refused(critic, trained, message):
    with pytest.raises(CheckpointError, match=message):
        await critic.values(trained.trajectories[:1])


async def test_a_base_model_with_the_trained_head_is_named(trained, tmp_path):
    shutil.copytree(trained.out, tmp_path, dirs_exist_ok=True)
    weights = load_file(trained.base / "model.safetensors")
    weights["score.weight"] = load_file(trained.out / "model.safetensors")["score.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert all(WITHOUT_ADAPTER in one.faults for one in trained.checkpoint.golden)
    await refused(HFCritic(tmp_path), trained, "served without the adapter")


async def test_half_precision_is_named(trained):
    assert all(BFLOAT16 in one.faults for one in trained.checkpoint.golden)
    await refused(HFCritic(trained.out, dtype="bfloat16"), trained, r"less precision.*tolerance=0\.")


def test_probes_that_do_not_fit_the_model_are_left_out(trained, merged):
    prompts = [GoldenPrompt(one.segments, one.token_ids) for one in trained.checkpoint.golden]
    longest = max(len(prompt.token_ids) for prompt in prompts)
    tokenize = WordTokenizer.from_folder(trained.base).encode
    for room, expected in ((15, 0), (16, 2)):
        encoder = replace(trained.checkpoint, max_tokens=longest + room).encoder(tokenize)
        assert len(golden_scores(merged.float(), prompts, [0.0] * len(prompts), encoder).probe_scores) == expected


def test_golden_and_probe_scores_are_saved(trained):
    loaded = ValueCheckpoint.load(trained.out)
    assert loaded.golden == trained.checkpoint.golden
    assert loaded.probe_scores == trained.checkpoint.probe_scores
    assert np.ptp([*loaded.probe_scores, max(one.score for one in loaded.golden)]) > 1e-3
