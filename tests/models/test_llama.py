from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import amc_agents.models.embedded
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.embedded.decoder import LlamaBatch, LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from tests.variants import variants

SHAPES = [{}, {"heads": 3, "kv_heads": 1}, {"heads": 4, "kv_heads": 2, "tied": False, "layers": 2}]


def sequences(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(5, 50, size=length).tolist()) for length in lengths]


def plain_logits(model, tokens):
    """Compute the logits of a single sequence without cache and batch."""
    rows = model.new_rows()
    hidden = model.forward(np.array(tokens), np.array([len(tokens)]), rows, 0)
    return model.logits(hidden[-1:])[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_transformers(make_folder, shape):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = make_folder(**shape)
    reference = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    model = NumpyLlama.load(folder)
    (tokens,) = sequences(200)
    hidden = model.forward(np.array(tokens), np.array([200]), model.new_rows(), 0)
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(model.logits(hidden) - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


@variants("shape", SHAPES)
def test_rows_of_different_lengths_equal_single_sequences(make_folder, shape):
    model = NumpyLlama.load(make_folder(**shape))
    batch = LlamaBatch(model)
    prompts = sequences(1, 7, 60, 61, 300)
    prompts += [prompts[2], prompts[4][:150] + prompts[1]]
    joined = batch.join(prompts)
    texts = [list(prompts[index]) for index in joined.order]
    assert sorted(joined.order) == list(range(len(prompts)))
    logits, rng = joined.logits, np.random.default_rng(1)
    for turn in range(6):
        for line, text in zip(logits, texts, strict=True):
            assert line == pytest.approx(plain_logits(model, text), abs=2e-5)
        if turn == 2:
            batch.leave(1)
            texts[1] = texts[-1]
            texts.pop()
        if turn == 3:
            more = batch.join(sequences(20, 33, seed=2))
            texts += [list(sequences(20, 33, seed=2)[index]) for index in more.order]
        tokens = rng.integers(5, 50, size=len(texts))
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
        logits = batch.step(tokens)


def test_many_rows_and_long_rows_make_the_arrays_grow(model_folder):
    model = NumpyLlama.load(model_folder)
    batch = LlamaBatch(model)
    prompts = sequences(*range(240, 260), seed=3)
    joined = batch.join(prompts)
    tokens = np.full(20, 7)
    for _ in range(20):
        logits = batch.step(tokens)
    for row in (0, 19):
        text = [*prompts[joined.order[row]], *[7] * 20]
        assert logits[row] == pytest.approx(plain_logits(model, text), abs=2e-5)


def test_a_step_costs_only_its_new_tokens(model_folder):
    batch = LlamaBatch(NumpyLlama.load(model_folder))
    (prompt,) = sequences(100)
    assert batch.join([prompt]).cached == (0,)
    for token in (5, 6, 7):
        batch.step(np.array([token]))
    batch.leave(0)
    # The three generated tokens are cached, too; only the observation is new.
    assert batch.join([(*prompt, 5, 6, 7, 8, 9)]).cached == (103,)


def test_a_prefix_that_new_prompts_share_is_computed_once(model_folder):
    batch = LlamaBatch(NumpyLlama.load(model_folder))
    (task,) = sequences(100)
    tails = sequences(5, 9, 14, seed=1)
    assert batch.join([task + tail for tail in tails]).cached == (100, 100, 100)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_scores_equal_those_of_peft_at_the_last_token(make_folder, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    folder = make_folder()
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=names)
    theirs = peft.get_peft_model(base, settings).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    theirs.save_pretrained(tmp_path)
    scorer = LlamaScorer(NumpyLlama.load(folder, tmp_path))
    texts = sequences(3, 80, 81, 40)
    with torch.no_grad():
        expected = [theirs(torch.tensor([text])).logits.item() for text in texts]
    assert scorer.values(texts) == pytest.approx(expected, abs=1e-5)
    # With one more token each, mostly from the cache.
    longer = [(*text, 9) for text in texts]
    with torch.no_grad():
        expected = [theirs(torch.tensor([text])).logits.item() for text in longer]
    before = scorer.cached_tokens
    assert scorer.values(longer) == pytest.approx(expected, abs=1e-5)
    assert scorer.cached_tokens - before == sum(map(len, texts))


def test_scorer_keeps_the_callers_order_over_several_batches(model_folder):
    scorer = LlamaScorer(NumpyLlama.load(model_folder))
    texts = sequences(*np.random.default_rng(0).integers(2, 40, size=150).tolist())
    together = scorer.last_hidden(texts)
    for index in (0, 70, 149):
        assert together[index] == pytest.approx(scorer.last_hidden([texts[index]])[0], abs=1e-5)


def test_values_at_marks_equal_those_of_the_prefixes():
    folder = Path(amc_agents.models.embedded.__path__[0]) / "crafting"
    model = NumpyLlama.load(folder, folder / "value")
    # Lengths and marks around the boundaries of the pieces, with more rows than are read at a time.
    texts = sequences(64, 1, 129, 65, 300, 63, 128, 2, 200, 64, 7, seed=5)
    marks = [
        sorted({mark for mark in (0, 62, 63, 64, 65, 127, 128, len(text) - 1) if mark < len(text)}) for text in texts
    ]
    expected = [
        LlamaScorer(model).values([text[: mark + 1]])[0] for text, at in zip(texts, marks, strict=True) for mark in at
    ]
    scorer = LlamaScorer(model)
    assert np.ptp(expected) > 0.01
    assert scorer.values_at(texts, marks) == pytest.approx(expected, abs=1e-5)
    assert scorer.values_at([], []).shape == (0,)
    with pytest.raises(ConfigurationError, match="has 0 tokens"):
        scorer.values_at([texts[0], ()], [(0,), ()])


def test_errors_name_the_problem(model_folder, tmp_path):
    scorer = LlamaScorer(NumpyLlama.load(model_folder))
    with pytest.raises(CheckpointError, match="no value head"):
        scorer.values([[5]])
    with pytest.raises(ConfigurationError, match="0 tokens"):
        scorer.last_hidden([[]])
    with pytest.raises(ConfigurationError, match="513 tokens"):
        scorer.last_hidden([[5] * 513])
    with pytest.raises(CheckpointError, match="missing"):
        NumpyLlama.load(tmp_path)
    config = json.loads((model_folder / "config.json").read_text()) | {"model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="qwen2"):
        NumpyLlama.load(tmp_path)
