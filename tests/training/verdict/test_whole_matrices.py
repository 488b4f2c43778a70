"""Matrices that are trained whole, and kept as an adapter."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM  # noqa: E402

from amc_agents.training.fine_tuning import round_to_half  # noqa: E402
from amc_agents.training.verdict.train_verdict import change_as_adapter, train_matrices  # noqa: E402


@pytest.fixture
def model(base_model):
    return AutoModelForCausalLM.from_pretrained(base_model).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 9, 40, 7, 100]]), use_cache=False).logits.double().numpy()


def changed(model, size=0.2):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5


def test_only_the_layers_matrices_are_trained(model):
    before = train_matrices(model)
    trained = {name.removesuffix(".weight") for name, one in model.named_parameters() if one.requires_grad}
    assert trained == before.keys()
    assert len(trained) == 2 * 7  # q, k, v, o, gate, up, down
    assert not any("embed" in name or "norm" in name or "lm_head" in name for name in trained)


def test_the_adapter_reproduces_the_trained_model(model):
    as_it_was = logits(model)
    before = train_matrices(model)
    changed(model)
    as_it_became = logits(model)
    assert np.abs(as_it_became - as_it_was).max() > 0.05
    wrapped = change_as_adapter(model, before).eval()
    np.testing.assert_allclose(logits(wrapped), as_it_became, atol=1e-5)
    with wrapped.disable_adapter():
        np.testing.assert_allclose(logits(wrapped), as_it_was, atol=1e-6)
    # Half precision costs little, as both factors have the same size.
    halved = copy.deepcopy(wrapped)
    round_to_half(halved)
    assert np.abs(logits(halved) - as_it_became).max() < 0.01 * np.abs(as_it_became - as_it_was).max()
    np.testing.assert_allclose(logits(halved.merge_and_unload()), logits(halved), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's, not ours
def test_a_verdict_critic_of_whole_matrices_learns_and_is_kept_as_an_adapter(base_model, tmp_path):
    from peft import PeftModel

    from amc_agents.training.verdict.train_verdict import EMBEDDED, train_verdict
    from tests.training.verdict.test_verdict import judged_play

    settings = replace(EMBEDDED, optimizer="muon", lora_rank=None, epochs=6, learning_rate=1e-2)
    checkpoint = train_verdict(base_model, judged_play(80), tmp_path / "model", settings)
    assert checkpoint.metrics["auc"] > 0.9
    base = AutoModelForCausalLM.from_pretrained(base_model)
    adapted = PeftModel.from_pretrained(base, tmp_path / "model" / "adapter").eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    np.testing.assert_allclose(logits(adapted), logits(merged), atol=1e-4)
