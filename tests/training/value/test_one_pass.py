import copy
import itertools
import multiprocessing
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from amc_agents.errors import ConfigurationError
from amc_agents.training.value.batches import collate
from amc_agents.training.value.one_pass import classifier, scores_at_marks, use_packing
from tests.training.tiny_models import PAD, adapted, classifier_of, norms_keep_their_type, prefix_scores, rows

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's, not ours

FAMILIES = ["llama", "qwen2", "qwen3", "gemma", "gemma3", "mistral"]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad}


def weighted_error(scores, targets, weights):
    return (weights * (scores - targets) ** 2).sum()


def of_one_pass(model, batch):
    targets, weights = batch["targets"].double(), batch["weights"].double()
    return gradients(model, weighted_error(scores_at_marks(model, batch), targets, weights))


def relative_difference(one, other):
    assert one.keys() == other.keys()
    assert any("lora_A" in name for name in one)
    assert any("lora_B" in name for name in one)
    assert any("score" in name for name in one)

    def norm(values):
        return float(torch.sqrt(sum((value**2).sum() for value in values)))

    return norm(one[name] - other[name] for name in one) / norm(other.values())


@pytest.mark.thorough
@pytest.mark.parametrize("norms", ["in float64", "as they are"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradients_of_one_pass_are_those_of_one_pass_per_prefix(family, norms):
    model, whole = adapted(family), rows()
    if norms == "in float64":
        norms_keep_their_type(model)
    tolerance = 1e-10 if norms == "in float64" else 1e-6
    assert model.config._attn_implementation == "sdpa"
    batch = collate(whole, PAD)
    one_by_one = torch.cat([prefix_scores(model, row) for row in whole])
    expected = gradients(model, weighted_error(one_by_one, batch["targets"].double(), batch["weights"].double()))
    assert relative_difference(of_one_pass(model, batch), expected) <= tolerance
    assert relative_difference(of_one_pass(model, collate(whole, PAD, packed=True)), expected) <= tolerance
    # The comparison fails if trajectories attend to each other, or if a state is missing.
    unwalled = collate(whole, PAD, packed=True)
    del unwalled["position_ids"]
    assert relative_difference(of_one_pass(model, unwalled), expected) > 1e-3
    fewer = [replace(whole[0], weights=(0.0, *whole[0].weights[1:])), *whole[1:]]
    assert relative_difference(of_one_pass(model, collate(fewer, PAD)), expected) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_trajectories_do_not_see_each_other(family):
    model, (one, other, last) = adapted(family), rows()
    changed = replace(one, ids=tuple((token + 7) % 60 + 4 for token in one.ids))
    with torch.no_grad():
        before, after = (
            scores_at_marks(model, collate([first, other, last], PAD, packed=True)) for first in (one, changed)
        )
    assert (before[:4] - after[:4]).abs().max() > 0.1
    assert torch.equal(before[4:], after[4:])


def test_a_padded_batch_needs_no_mask_and_takes_the_causal_kernel(monkeypatch):
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def recorded(*args, **kwargs):
        calls.append((kwargs["attn_mask"], kwargs["is_causal"]))
        return kernel(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    scores_at_marks(adapted("llama"), collate(rows(), PAD))
    assert calls == [(None, True)] * 3


@pytest.fixture
def flash_varlen(monkeypatch):
    """A CPU kernel with the contract of flash attention: it takes lengths of sequences and no mask."""
    calls = []

    def attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
        assert attention_mask is None
        bounds = kwargs.get("cu_seq_lens_q", torch.tensor([0, query.shape[2]]))
        calls.append((bounds.tolist(), kwargs.get("max_length_q")))
        assert torch.equal(bounds, kwargs.get("cu_seq_lens_k", bounds))
        key, value = (one.repeat_interleave(module.num_key_value_groups, dim=1) for one in (key, value))
        parts = [
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], is_causal=True, scale=scaling
            )
            for start, end in itertools.pairwise(bounds.tolist())
        ]
        return torch.cat(parts, dim=2).transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_on_the_cpu", attention)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "flash_on_the_cpu", flash_attention_mask)
    return calls


def test_a_variable_length_kernel_gets_the_bounds_of_trajectories(flash_varlen):
    model, whole = adapted("llama"), rows()
    expected = of_one_pass(model, collate(whole, PAD))
    model.config._attn_implementation = "flash_on_the_cpu"
    assert use_packing(model, "auto") is True
    flash_varlen.clear()
    assert relative_difference(of_one_pass(model, collate(whole, PAD, packed=True)), expected) <= 1e-6
    assert flash_varlen == [([0, 14, 33, 57], 24)] * 3
    assert relative_difference(of_one_pass(model, collate(whole, PAD)), expected) <= 1e-6


def test_the_head_is_applied_only_to_marks():
    model, seen = adapted("llama"), []
    for name, module in model.named_modules():
        if name.endswith("score.modules_to_save.default"):
            module.register_forward_hook(lambda _, given, answer: seen.append(tuple(given[0].shape)))
    scores_at_marks(model, collate(rows(), PAD))
    assert seen == [(12, 32)]


def test_a_batch_holds_the_targets_of_each_mark():
    whole = rows(count=2, states=3)
    batch = collate(whole, PAD)
    assert batch["input_ids"].shape == (2, 19)
    assert batch["input_ids"][0, 14:].tolist() == [PAD] * 5
    assert batch["mark_rows"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["mark_columns"].tolist() == [*whole[0].marks, *whole[1].marks]
    for name in ("targets", "weights"):
        expected = [value for row in whole for value in getattr(row, name)]
        assert batch[name].tolist() == pytest.approx(expected, abs=1e-6)
    packed = collate(whole, PAD, packed=True)
    assert packed["input_ids"].tolist() == [[*whole[0].ids, *whole[1].ids]]
    assert packed["position_ids"].tolist() == [[*range(14), *range(19)]]
    assert packed["mark_rows"].tolist() == [0] * 6
    assert packed["mark_columns"].tolist() == [*whole[0].marks, *(14 + mark for mark in whole[1].marks)]


def test_a_mark_on_the_padding_token_is_refused():
    (row,) = rows(count=1)
    with pytest.raises(ConfigurationError, match="mark ends in token 0, which is the padding token"):
        collate([replace(row, ids=(*row.ids[:-1], PAD))], PAD)
    with pytest.raises(ConfigurationError, match="padding token"):
        collate([row], row.ids[row.marks[0]], packed=True)


def test_scores_of_a_padded_batch_are_those_of_the_prefixes_in_the_order_of_rows():
    model, whole = adapted("qwen3"), rows(count=5)
    mixed = [whole[index] for index in (3, 0, 4, 1, 2)]
    with torch.no_grad():
        scores = scores_at_marks(model, collate(mixed, PAD))
        np.testing.assert_allclose(scores, torch.cat([prefix_scores(model, row) for row in mixed]), rtol=1e-6)


def test_without_marks_a_classifier_is_unchanged():
    model = classifier_of("llama").eval()
    ids = torch.tensor([rows()[0].ids])
    before = model(input_ids=ids, labels=torch.tensor([1.0]).double())
    scores_at_marks(model, collate(rows(), PAD))
    after = model(input_ids=ids, labels=torch.tensor([1.0]).double())
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.loss, after.loss)


def test_a_copy_of_a_model_uses_its_own_weights():
    model, batch = adapted("llama"), collate(rows(), PAD)
    before = scores_at_marks(model, batch)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(scores_at_marks(copied, batch), before)
    assert not scores_at_marks(model, batch).any()


def pass_through_data_parallel(store):
    """Check one pass in a separate process, which ends without destroying its process group.

    The group's destructor joins a thread that may wait for the interpreter's lock, which the destructor holds.
    """
    model, batch = adapted("llama"), collate(rows(), PAD)
    expected = of_one_pass(model, batch)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    wrapped, passes = torch.nn.parallel.DistributedDataParallel(model), []
    wrapped.register_forward_hook(lambda *_: passes.append(1))
    model.zero_grad()
    loss = weighted_error(scores_at_marks(wrapped, batch), batch["targets"].double(), batch["weights"].double())
    loss.backward()
    assert passes == [1]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-12)
    os._exit(0)


@pytest.mark.thorough
def test_a_pass_goes_through_the_wrapper_of_data_parallel_training(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=pass_through_data_parallel, args=(str(tmp_path / "store"),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


def test_scores_are_float32_where_the_model_is_smaller():
    model = classifier_of("llama").bfloat16()
    assert scores_at_marks(model, collate(rows(), PAD)).dtype == torch.float32


def test_a_model_without_a_score_head_is_refused():
    with pytest.raises(ConfigurationError, match="Linear has no `score` head"):
        classifier(torch.nn.Linear(2, 1))
