import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.critics.value.hf import HFCritic
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.training.fine_tuning import make_encoder
from amc_agents.usage import Meter, Usage, metering
from tests.training.target_rows import row_values, target_rows


def embedded(trained):
    return EmbeddedCritic(trained.base, trained.out / "adapter")


def hf(trained):
    return parse_critic(f"hf:{trained.out}")


@pytest.fixture(params=[embedded, hf])
def critic(request, trained):
    return request.param(trained)


async def test_numpy_torch_and_training_agree(trained):
    chosen = trained.trajectories[:20]
    states = [one.prefix(t) for one in chosen for t in range(len(one.steps) + 1)]
    by_torch, by_numpy = await hf(trained).values(states), await embedded(trained).values(states)
    model = AutoModelForSequenceClassification.from_pretrained(trained.out).eval()
    encoder = make_encoder(AutoTokenizer.from_pretrained(trained.out), DIALOGUE, 512)
    in_training = np.concatenate(row_values(model, target_rows(chosen, encoder)))
    assert np.ptp(by_torch) > 0.5
    np.testing.assert_allclose(by_numpy, by_torch, atol=1e-5)
    np.testing.assert_allclose(by_torch, in_training, atol=1e-5)


async def test_equal_prompts_are_scored_once_and_order_is_kept(critic, trained):
    one, other = trained.trajectories[0], trained.trajectories[7]
    values = await critic.values([one, other, one, one])
    assert values[0] == values[2] == values[3] != values[1]
    assert critic.usage.calls == 2
    assert (await critic.values([other, one])).tolist() == pytest.approx([values[1], values[0]], abs=1e-6)
    assert (await critic.values([])).shape == (0,)


async def test_usage_is_counted_for_the_run(critic, trained):
    meter = Meter()
    one = trained.trajectories[0]
    with metering(meter):
        await critic.values([one])
    tokens = sum(map(len, critic._encoder.newest(one)))
    cached = meter.read()["critic"].cached_tokens
    assert meter.read()["critic"] == critic.usage == Usage(calls=1, input_tokens=tokens, cached_tokens=cached)


async def test_a_later_state_costs_the_embedded_critic_only_its_new_tokens(trained):
    critic, whole = embedded(trained), trained.trajectories[0]
    await critic.values([whole.prefix(1)])
    before = critic.usage
    await critic.values([whole.prefix(2)])
    new = len(critic._encoder.newest(whole)[2])
    read, cached = critic.usage.input_tokens - before.input_tokens, critic.usage.cached_tokens - before.cached_tokens
    assert read - cached == new


async def test_scale_is_the_unit_of_the_world(trained, tmp_path):
    folder = edited(trained.out, tmp_path, scale=10.0)
    states = trained.trajectories[:3]
    np.testing.assert_allclose(await HFCritic(folder).values(states), 10 * await hf(trained).values(states), rtol=1e-6)


async def test_link_and_calibration_are_applied_by_both_interfaces(trained, tmp_path):
    calibration = {"kind": "isotonic", "value": [1.0, 3.0], "calibrated": [0.1, 0.9]}
    folder = edited(trained.out, tmp_path, link="sigmoid", scale=4.0, calibration=calibration)
    whole = max(trained.trajectories[:20], key=lambda one: len(one.steps))
    states = [whole.prefix(t) for t in range(len(whole.steps) + 1)]
    raw = await hf(trained).values(states)
    expected = np.interp(4 / (1 + np.exp(-raw)), [1.0, 3.0], [0.1, 0.9])
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(await HFCritic(folder).values(states), expected, atol=1e-6)
    np.testing.assert_allclose(HFCritic(folder).state_values([whole])[0], expected, atol=1e-5)


async def test_a_prompt_over_the_limit_drops_old_rounds(trained, tmp_path):
    whole = max(trained.trajectories, key=lambda one: len(one.steps))
    critic = HFCritic(edited(trained.out, tmp_path, max_tokens=90))
    assert len(critic._encoder.newest(whole)) < len(whole.steps) + 1
    assert np.isfinite(await critic.values([whole])).all()
    with pytest.raises(CriticError, match="limit is 20"):
        await HFCritic(edited(trained.out, tmp_path / "short", max_tokens=20)).values([whole])


def edited(folder, target, **changes):
    shutil.copytree(folder, target, dirs_exist_ok=True)
    values = json.loads((target / FILE).read_text())
    (target / FILE).write_text(json.dumps(values | changes))
    return target


def golden(folder):
    return json.loads((folder / FILE).read_text())["golden"]


async def refused(critic, trained, message):
    with pytest.raises(CheckpointError, match=message):
        await critic.values(trained.trajectories[:1])


async def test_another_tokenizer_is_caught(trained, tmp_path):
    changed = [{**one, "token_ids": [*one["token_ids"][:-1], 9]} for one in golden(trained.out)]
    await refused(HFCritic(edited(trained.out, tmp_path, golden=changed)), trained, "cause: another tokenizer")


async def test_a_squashed_score_is_caught(trained, tmp_path):
    # The model's raw scores are where the served ones would be: sigmoid(golden).
    def inverse(score: float) -> float:
        return float(np.log(score / (1 - score)))

    chosen = [one for one in golden(trained.out) if 0.05 < one["score"] < 0.95]
    changed = [{**one, "score": inverse(one["score"])} for one in chosen]
    assert changed
    await refused(HFCritic(edited(trained.out, tmp_path, golden=changed)), trained, "sigmoid")


async def test_other_weights_are_caught(trained, tmp_path):
    folder = edited(trained.out, tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"] = weights["score.weight"] * np.float32(1.5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    await refused(HFCritic(folder), trained, "other weights")


def test_an_adapter_of_another_policy_is_caught_at_load(trained, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(trained.base, base)
    weights = load_file(base / "model.safetensors")
    save_file({name: 2 * one for name, one in weights.items()}, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="was trained on other weights"):
        EmbeddedCritic(base, trained.out / "adapter")


def test_a_folder_without_the_json_is_not_a_critic(trained, tmp_path):
    with pytest.raises(CheckpointError, match=r"amc_value\.json does not exist"):
        HFCritic(trained.base)
    (tmp_path / FILE).write_text('{"kind": "amc-value", "version": 9}')
    with pytest.raises(CheckpointError, match="version 9"):
        HFCritic(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 100])
def test_a_damaged_folder_is_named(trained, tmp_path, name, content):
    folder = edited(trained.out, tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a value model's folder, or is damaged"):
        HFCritic(folder)


def test_torch_was_left_with_its_random_state(trained):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    hf(trained)
    assert torch.rand(1) == expected
