"""The diagnosis of a wrong server: scores with each fault, and the cause that the error names."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.render import DIALOGUE, PLAIN
from amc_agents.critics.saved import (
    BFLOAT16,
    FIRST_TOKEN_POOLING,
    MEAN_POOLING,
    PROBE_TOKENS,
    WITHOUT_ADAPTER,
    longest,
)
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.errors import CheckpointError
from amc_agents.models.embedded import model_folder
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.tokenizers import WordTokenizer

FOLDER = model_folder("crafting")


@pytest.fixture(scope="module")
def checkpoint():
    return ValueCheckpoint.load(FOLDER / "value")


@pytest.fixture(scope="module")
def score():
    return LlamaScorer(NumpyLlama.load(FOLDER, FOLDER / "value")).values


@pytest.fixture(scope="module")
def tokenize():
    return WordTokenizer.from_folder(FOLDER).encode


def stored(checkpoint, fault):
    """Scores of a server with a stored fault; the scores of the probes are arbitrary."""
    return np.array([*(golden.faults[fault] for golden in checkpoint.golden), 0.3, 0.2])


def cause(checkpoint, scores, **options):
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check_scores(np.asarray(scores), "critic vllm:x", **options)
    assert str(caught.value).startswith("critic vllm:x: golden scores differ: expected [")
    return str(caught.value).split("Likely cause: ")[1]


def test_the_right_scores_pass(checkpoint, score, tokenize):
    checkpoint.check_prompts(tokenize, "here")
    checkpoint.check_scores(score(checkpoint.handshake_rows()), "here")


def test_the_probes_follow_the_golden_prompts_and_are_slightly_longer(checkpoint):
    rows = checkpoint.handshake_rows()
    golden = [golden.token_ids for golden in checkpoint.golden]
    assert rows[:-2] == golden
    whole = golden[longest(checkpoint.golden)]
    assert [len(row) - len(whole) for row in rows[-2:]] == [PROBE_TOKENS] * 2
    assert rows[-2][: len(whole)] == whole == rows[-1][-len(whole) :]
    with_start = replace(checkpoint, prefix_ids=whole[:1]).handshake_rows()
    assert {row[0] for row in with_start} == {whole[0]}
    assert with_start[-1][-len(whole) + 1 :] == whole[1:]


@pytest.mark.parametrize(
    ("prompt_format", "part"),
    [
        (PLAIN, "opening"),
        (replace(DIALOGUE, marker="<|user|>"), "opening"),
        (replace(DIALOGUE, opening="Task: {instruction}"), "opening"),
        (replace(DIALOGUE, round="{turn}\nObservation: {observation}"), "round"),
    ],
)
def test_another_template_is_named(checkpoint, tokenize, prompt_format, part):
    changed = replace(checkpoint, prompt_format=prompt_format)
    with pytest.raises(CheckpointError, match=f"its {part} does not fit.*another template"):
        changed.check_prompts(tokenize, "here")


def test_another_tokenizer_is_named(checkpoint, tokenize):
    with pytest.raises(CheckpointError, match=r"token 98\).*another tokenizer"):
        checkpoint.check_prompts(lambda text: [*tokenize(text)[:-1], 9], "here")


def test_an_activation_is_named(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    assert "sigmoid" in cause(checkpoint, 1 / (1 + np.exp(-right)))
    assert "softmax" in cause(checkpoint, np.ones_like(right))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (MEAN_POOLING, "mean pooling"),
        (FIRST_TOKEN_POOLING, "first-token pooling"),
        (WITHOUT_ADAPTER, "served without the adapter"),
        (BFLOAT16, "less precision"),
    ],
)
def test_a_fault_whose_scores_are_stored_is_named(checkpoint, fault, name):
    scores = stored(checkpoint, fault)
    if fault == BFLOAT16:
        scores[-2:] = np.array(checkpoint.probe_scores) + 0.004
    assert name in cause(checkpoint, scores)
    # The server may also round.
    assert name in cause(checkpoint, scores * 1.005)


def test_scores_without_the_adapter_are_those_of_the_base_model_with_the_trained_head(checkpoint):
    head, base = NumpyLlama.load(FOLDER, FOLDER / "value"), NumpyLlama.load(FOLDER)
    hidden = LlamaScorer(base).last_hidden([golden.token_ids for golden in checkpoint.golden])
    expected = [golden.faults[WITHOUT_ADAPTER] for golden in checkpoint.golden]
    np.testing.assert_allclose(head.scores(hidden), expected, atol=1e-5)


@pytest.mark.parametrize("kept", [2, 20, 120, 300, 400, 415, 416])
@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation_and_its_side_are_named(checkpoint, score, side, kept):
    cut = [row[:kept] if side == "right" else row[-kept:] for row in checkpoint.handshake_rows()]
    assert f"truncated on the {side}" in cause(checkpoint, score(cut))


@pytest.mark.parametrize("cut", [slice(420), slice(-420, None)])
def test_truncation_of_the_probes_alone_is_named(checkpoint, score, cut):
    named = cause(checkpoint, score([row[cut] for row in checkpoint.handshake_rows()]))
    assert "truncated (prompts of 432 tokens are wrong, those of 416 are not)" in named


def test_without_stored_faults_the_diagnosis_is_weaker_but_not_wrong(checkpoint, score):
    old = replace(checkpoint, golden=tuple(replace(golden, faults={}) for golden in checkpoint.golden), probe_scores=())
    rows = old.handshake_rows()
    assert len(rows) == len(old.golden)
    old.check_scores(score(rows), "here")
    assert "other weights" in cause(old, stored(checkpoint, MEAN_POOLING)[:-2])
    assert "same score" in cause(old, stored(checkpoint, FIRST_TOKEN_POOLING)[:-2])
    assert "those of 281 are not" in cause(old, score([row[:300] for row in rows]))
    assert "less precision" in cause(old, score(rows) + np.array([1, -1, 1, -1, 1]) * 3e-3)


def test_another_fine_tune_is_named(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    assert "other weights" in cause(checkpoint, 1.5 * right)
    assert "other weights" in cause(checkpoint, right[::-1])


def test_a_missing_head_is_named(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    assert cause(checkpoint, right * 1e26).startswith("the served folder has no trained value head")
    assert "no trained value head" in cause(checkpoint, np.zeros_like(right))


def test_a_loss_of_precision_says_which_tolerance_would_accept_it(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    rounded = right + 0.0039 * np.array([1, -1, 0.2, 0.5, -1, 0.9, 1])
    named = cause(checkpoint, rounded)
    assert "tolerance=0.008" in named
    checkpoint.check_scores(rounded, "here", tolerance=0.008)
    # Only the longest prompt exceeds a wider tolerance. This is not truncation, since the others are not exact either.
    rounded = right + np.array([1, -2, 4, 8, -40, -40, 40]) * 1e-4
    assert "less precision" in cause(checkpoint, rounded, tolerance=0.003)


def test_the_tolerance_may_be_smaller_than_the_checkpoints(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    checkpoint.check_scores(right + 5e-5, "here")
    assert "less precision" in cause(checkpoint, right + 5e-5, tolerance=1e-5)


class Rounded(np.ndarray):
    """An array whose matrix products round their factors, as a GPU's units do: TF32 to a mantissa of 10 bits."""

    bits = 10

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **settings):
        plain = [each.view(np.ndarray) if isinstance(each, Rounded) else each for each in inputs]
        if ufunc is np.matmul:
            plain = [self.rounded(each) for each in plain]
        if out is not None:
            settings["out"] = tuple(each.view(np.ndarray) for each in out)
        answer = getattr(ufunc, method)(*plain, **settings)
        return out[0] if out is not None else np.asarray(answer).view(type(self))

    def rounded(self, factor):
        dropped = 23 - self.bits
        whole = np.ascontiguousarray(factor, dtype=np.float32).view(np.int32) + (1 << (dropped - 1))
        return (whole & -(1 << dropped)).view(np.float32)


class RoundedMore(Rounded):
    bits = 7  # of bfloat16


def rounded_scores(checkpoint, kind):
    """Return the scores of the shipped model, all of whose matrix products are rounded."""
    model = NumpyLlama.load(FOLDER, FOLDER / "value")
    model._layers = [type(layer)(*(matrix.view(kind) for matrix in layer)) for layer in model._layers]
    model._score = model._score.view(kind)
    return np.array(LlamaScorer(model).values(checkpoint.handshake_rows()))


def test_the_handshake_accepts_the_rounding_of_tf32_and_still_no_fault(checkpoint, score):
    right, scores = score(checkpoint.handshake_rows()), rounded_scores(checkpoint, Rounded)
    assert 1e-4 < np.abs(scores - right).max() < checkpoint.allowed
    assert checkpoint.allowed == pytest.approx(0.005 * np.ptp([golden.score for golden in checkpoint.golden]))
    checkpoint.check_scores(scores, "a GPU")
    assert "TF32 products on a GPU, which NVIDIA_TF32_OVERRIDE=0 turns off" in cause(checkpoint, scores, tolerance=1e-4)
    for name in (MEAN_POOLING, FIRST_TOKEN_POOLING, WITHOUT_ADAPTER):
        assert np.abs(stored(checkpoint, name) - right)[:-2].max() > 100 * checkpoint.allowed
        assert cause(checkpoint, stored(checkpoint, name))


def test_bfloat16_is_refused_as_the_checkpoint_stores_it_and_costs_more_than_tf32(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    errors = [np.abs(rounded_scores(checkpoint, kind) - right).max() for kind in (Rounded, RoundedMore)]
    served = np.array([*stored(checkpoint, BFLOAT16)[:-2], *(right[-2:] + 0.003)])
    assert 4 * errors[0] < errors[1] < np.abs(served - right).max()
    assert "less precision than the checkpoint's (bfloat16" in cause(checkpoint, served)


def test_invalid_scores_are_named_errors(checkpoint, score):
    right = score(checkpoint.handshake_rows())
    assert "not finite" in cause(checkpoint, np.where(np.arange(len(right)) == 2, np.nan, right))
    with pytest.raises(CheckpointError, match=r"shape \(7, 2\) for 7 prompts.*num_labels=1"):
        checkpoint.check_scores(np.stack([right, right], axis=1), "here")


def test_a_checkpoint_round_trips_and_older_files_load(checkpoint, tmp_path):
    kept = replace(checkpoint, beta=0.25)
    kept.save(tmp_path)
    assert ValueCheckpoint.load(tmp_path) == kept
    values = json.loads((tmp_path / FILE).read_text())
    del values["beta"], values["probe_scores"]
    for golden in values["golden"]:
        del golden["faults"]
    (tmp_path / FILE).write_text(json.dumps(values))
    older = ValueCheckpoint.load(tmp_path)
    assert (older.beta, older.probe_scores) == (None, ())
    assert [golden.score for golden in older.golden] == [golden.score for golden in checkpoint.golden]


def test_another_kind_of_file_is_refused(tmp_path):
    shutil.copy(FOLDER / "config.json", tmp_path / FILE)
    with pytest.raises(CheckpointError, match="not a value checkpoint"):
        ValueCheckpoint.load(tmp_path)
