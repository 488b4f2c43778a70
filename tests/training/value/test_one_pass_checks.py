import pytest
import torch

from amc_agents.errors import ConfigurationError
from amc_agents.training.value import one_pass as one_pass_checks
from amc_agents.training.value.one_pass import can_pack, check_one_pass, use_packing
from tests.training.tiny_models import classifier_of


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral", "gpt2", "opt", "bloom", "gpt_oss"])
def test_causal_models_pass_and_keep_their_mode(family):
    model = classifier_of(family, **_NO_DROPOUT.get(family, {})).float().eval()
    check_one_pass(model)
    assert not model.training


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral", "gpt2"])
def test_a_model_whose_masks_separate_packed_rows_can_pack(family):
    model = classifier_of(family, **_NO_DROPOUT.get(family, {})).float()
    assert can_pack(model)
    assert use_packing(model, True)


@pytest.mark.parametrize("family", ["opt", "bloom", "gpt_oss"])
def test_a_model_whose_packed_rows_see_each_other_cannot_pack(family):
    model = classifier_of(family, **_NO_DROPOUT.get(family, {})).float()
    assert not can_pack(model)
    with pytest.raises(ConfigurationError, match="lets packed trajectories see each other"):
        use_packing(model, True)
    assert use_packing(model, False) is False


def test_separated_rows_without_restarted_positions_cannot_be_packed():
    model = classifier_of("gpt2", **_NO_DROPOUT["gpt2"]).float()
    model.transformer.wpe.register_forward_pre_hook(lambda _, given: torch.arange(given[0].shape[1])[None])
    check_one_pass(model)
    assert not can_pack(model)


def test_a_leak_of_the_size_of_rounding_errors_is_detected():
    model = classifier_of("llama").bfloat16()
    model.model.norm.register_forward_hook(lambda _, __, hidden: hidden + 0.15 * hidden[:, :1])
    check_one_pass(model)
    assert not can_pack(model)


def test_sdpa_pads_by_default():
    assert use_packing(classifier_of("llama").float(), "auto") is False


def test_a_model_without_weights_is_not_checked(monkeypatch):
    monkeypatch.setattr(one_pass_checks.frameworks, "is_fsdp_enabled", lambda: True)
    model = classifier_of("gemma3", use_bidirectional_attention=True).float()
    check_one_pass(model)
    assert use_packing(model, "auto") is False
    assert use_packing(model, False) is False
    with pytest.raises(ConfigurationError, match="it has no weights before training"):
        use_packing(model, True)


def test_a_model_that_looks_ahead_is_refused():
    model = classifier_of("gemma3", use_bidirectional_attention=True).float()
    with pytest.raises(ConfigurationError, match="Gemma3TextForSequenceClassification is not causal"):
        check_one_pass(model)


def test_a_model_that_is_random_in_training_is_refused():
    with pytest.raises(ConfigurationError, match="different scores each time in training"):
        check_one_pass(classifier_of("gpt2", resid_pdrop=0.1).float())


def test_a_classifier_that_pools_another_token_is_refused(monkeypatch):
    model = classifier_of("llama").float()
    at_last_token = model.forward

    def at_first_token(input_ids, **kwargs):
        return at_last_token(input_ids=input_ids[:, :1], **kwargs)

    model.forward = at_first_token
    with pytest.raises(ConfigurationError, match="at the last token"):
        check_one_pass(model)


_NO_DROPOUT = {"gpt2": {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}}
