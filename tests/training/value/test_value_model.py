import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import amc_agents.models.embedded
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.fine_tuning import context, round_to_half
from amc_agents.training.value import classifier as value_model
from amc_agents.training.value.batches import collate
from amc_agents.training.value.classifier import export, load_base
from amc_agents.training.value.one_pass import classifier, scores_at_marks
from tests.training.target_rows import row_values
from tests.training.tiny_models import COMMON, CONFIGS, prefix_scores, rows

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's, not ours

WORDS = 279
"""Tokens of the shipped tokenizer, which these models borrow."""
TEXT = COMMON | {"vocab_size": WORDS, "num_hidden_layers": 4, "pad_token_id": 1}
EYES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SEEING: dict[str, Any] = {
    "mllama": lambda: transformers.MllamaConfig(
        text_config=TEXT | {"cross_attention_layers": [1, 3], "bos_token_id": 2, "eos_token_id": 4},
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_global_layers": 1,
            "attention_heads": 2, "image_size": 8, "patch_size": 4, "vision_output_dim": 48,
            "intermediate_layers_indices": [0, 1], "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
        },
    ),
    "gemma3": lambda: transformers.Gemma3Config(
        text_config=TEXT | {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
        vision_config=EYES | {"image_size": 8, "patch_size": 4},
    ),
    "qwen2_5_vl": lambda: transformers.Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": _rope(mrope_section=[1, 1, 2])},
        vision_config={"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32},
    ),
    "qwen3_vl": lambda: transformers.Qwen3VLConfig(
        text_config=TEXT | {"head_dim": 8, "rope_parameters": _rope(mrope_section=[2, 1, 1], mrope_interleaved=True)},
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32,
            "deepstack_visual_indexes": [0],
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    lora_rank: int = 4
    lora_alpha: int = 8
    lora_targets: str | tuple[str, ...] = "all-linear"
    dtype: Any = "float32"
    device: str = "cpu"
    attention: str = "auto"
    gradient_checkpointing: bool = False
    quantize: Any = None
    seed: int = 0


def _rope(**more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e6} | more


def folder_of(config: Any, folder: Path, auto: Any = AutoModelForCausalLM) -> Path:
    """A model of random weights with the shipped tokenizer."""
    torch.manual_seed(0)
    auto.from_config(config).save_pretrained(folder)
    with_tokenizer(folder)
    return folder


def with_tokenizer(folder: Path) -> None:
    shipped = Path(amc_agents.models.embedded.__path__[0]) / "crafting"
    for path in shipped.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name != "config.json":
            shutil.copy(path, folder)


def llama(folder: Path, **more: Any) -> Path:
    return folder_of(CONFIGS["llama"](vocab_size=WORDS, pad_token_id=1, **more), folder)


def trained(model: Any) -> Any:
    """As if it had been: adapter and head away from where they start."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora_A" not in name:
                parameter.normal_(std=0.1)
    round_to_half(model)
    return model


def modules_with_adapter(model: Any) -> set[str]:
    return {name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name}


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral", "gpt2", "bloom"])
def test_the_exported_folder_gives_the_same_values_at_the_last_token(family, tmp_path):
    base = folder_of(CONFIGS[family](vocab_size=WORDS, pad_token_id=1), tmp_path / "base")
    model, tokenizer = load_base(base, Settings())
    values = row_values(trained(model), rows())
    export(model, tokenizer, base, tmp_path / "out", Settings())
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        for found, row in zip(values, rows(), strict=True):
            np.testing.assert_allclose(prefix_scores(loaded, row), found, atol=2e-5)
    assert np.ptp(np.concatenate(values)) > 0.2
    # Rows of unequal length, padded on the right, as a server would batch them.
    with torch.no_grad():
        ids = collate(rows(), loaded.config.pad_token_id)["input_ids"]
        together = loaded(input_ids=ids, attention_mask=(ids != 1).long()).logits[:, 0]
    np.testing.assert_allclose(together, [found[-1] for found in values], atol=2e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").padding_side == "right"


def test_the_adapter_folder_holds_what_was_trained(tmp_path):
    base = llama(tmp_path / "base")
    model, tokenizer = load_base(base, Settings())
    values = row_values(trained(model), rows())
    export(model, tokenizer, base, tmp_path / "out", Settings())
    again, _ = load_base(base, Settings(seed=9))
    assert np.abs(np.concatenate(row_values(again, rows())) - np.concatenate(values)).max() > 0.1
    set_peft_model_state_dict(again, load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors"))
    np.testing.assert_allclose(np.concatenate(row_values(again, rows())), np.concatenate(values), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SEEING)
def test_of_a_model_that_also_sees_the_text_tower_becomes_the_value_model(kind, tmp_path):
    base = folder_of(SEEING[kind](), tmp_path / "base", AutoModelForImageTextToText)
    model, tokenizer = load_base(base, Settings())
    inner = classifier(model)
    assert inner.score.weight.shape == (1, 32)
    assert not any("vision" in name or "visual" in name for name, _ in model.named_modules())
    layers = 2 if kind == "mllama" else 4  # without those that look at images alone
    assert len(modules_with_adapter(model)) == 7 * layers

    # What the whole model makes of a text, read by its own class, with no adapter in the way.
    whole = AutoModelForImageTextToText.from_pretrained(base).eval()
    ids = torch.tensor([rows()[2].ids])
    with torch.no_grad():
        expected = whole(input_ids=ids, output_hidden_states=True).hidden_states[-1] @ inner.score.weight.T
        marks = collate(rows()[2:], 1)
        found = scores_at_marks(model.eval(), marks)
    torch.testing.assert_close(found, expected[0, marks["mark_columns"], 0], atol=2e-5, rtol=1e-4)

    values = row_values(trained(model), rows())
    export(model, tokenizer, base, tmp_path / "out", Settings())
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        np.testing.assert_allclose(prefix_scores(loaded, rows()[1]), values[1], atol=2e-5)


def test_a_tower_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    base = folder_of(SEEING["qwen3_vl"](), tmp_path, AutoModelForImageTextToText)
    monkeypatch.setitem(value_model._SAME_ARITHMETIC, "qwen3_vl_text", "llama")
    with pytest.raises(ConfigurationError, match="Qwen3VLTextModel and LlamaModel with the same weights differ by"):
        load_base(base, Settings())


def test_bfloat16_trains_adapter_and_head_in_float32(tmp_path):
    base = llama(tmp_path / "base")
    settings = Settings(dtype="bfloat16")
    model, tokenizer = load_base(base, settings)
    types = {one.requires_grad: set() for one in model.parameters()}
    for parameter in model.parameters():
        types[parameter.requires_grad].add(parameter.dtype)
    assert types[True] == {torch.float32}
    assert types[False] >= {torch.bfloat16}
    # A step that bfloat16 would round away arrives in the head.
    head = next(one for name, one in model.named_parameters() if one.requires_grad and "score" in name)
    before = head.detach().clone()
    optimizer = torch.optim.SGD([head], lr=1e-6)
    scores_at_marks(model, collate(rows(), 1)).sum().backward()
    optimizer.step()
    moved = (head - before).abs()
    assert 0 < moved.max() < 1e-3 * before.abs().max()
    assert (moved > 0).float().mean() > 0.5

    values = row_values(trained(model), rows())
    merged = export(model, tokenizer, base, tmp_path / "out", settings)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert {one.dtype for one in (*merged.parameters(), *loaded.parameters())} == {torch.bfloat16}
    for one, other in zip(row_values(merged, rows()), row_values(loaded, rows()), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(np.concatenate(row_values(loaded, rows())), np.concatenate(values), atol=0.15)


def gradients(model: Any) -> dict[str, Any]:
    batch = collate(rows(), 1)
    ((scores_at_marks(model.train(), batch) - batch["targets"]) ** 2).sum().backward()
    return {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def test_gradient_checkpointing_computes_layers_again_and_changes_no_gradient(tmp_path):
    base = llama(tmp_path)
    found, layers = [], []
    for checkpointing in (False, True):
        model = trained(load_base(base, Settings(gradient_checkpointing=checkpointing)).model)
        passes: list[int] = []
        norm = classifier(model).model.layers[0].input_layernorm
        norm.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        found.append(gradients(model))
        layers.append(len(passes))
    assert layers == [1, 2]
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_dropout_of_the_base_model_is_off(tmp_path):
    base = folder_of(CONFIGS["gpt2"](vocab_size=WORDS, pad_token_id=1), tmp_path)
    assert json.loads((base / "config.json").read_text())["resid_pdrop"] == 0.1
    model = load_base(base, Settings()).model.train()
    batch = collate(rows(), 1)
    assert torch.equal(scores_at_marks(model, batch), scores_at_marks(model, batch))


def test_the_adapter_is_as_asked_and_the_seed_draws_it(tmp_path):
    base = llama(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    settings = Settings(lora_rank=2, lora_targets=("q_proj", "v_proj"))
    one, again, other = (load_base(base, settings).model for settings in (settings, settings, Settings(seed=1)))
    assert torch.rand(1) == expected
    assert {name.rsplit(".")[-1] for name in modules_with_adapter(one)} == {"q_proj", "v_proj"}
    assert len(modules_with_adapter(other)) == 21
    assert one.peft_config["default"].r == 2
    heads = [dict(model.named_parameters())[_HEAD] for model in (one, again, other)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_attention_is_the_one_asked_for(tmp_path):
    base = llama(tmp_path)
    for attention, expected in (("auto", "sdpa"), ("eager", "eager")):
        model = load_base(base, Settings(attention=attention)).model
        assert classifier(model).config._attn_implementation == expected
    with pytest.raises(ConfigurationError, match="flex attention has no backward pass on the CPU"):
        load_base(base, Settings(attention="flex_attention"))
    if find_spec("flash_attn") is None:
        with pytest.raises(ConfigurationError, match="attention='flash_attention_2' cannot be used here"):
            load_base(base, Settings(attention="flash_attention_2"))


def test_a_pad_token_beyond_the_vocabulary_is_refused_before_training(tmp_path):
    base = folder_of(CONFIGS["llama"](vocab_size=WORDS, pad_token_id=1), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"pad_token": "<one more>"})
    tokenizer.save_pretrained(base)
    with pytest.raises(
        ConfigurationError, match=rf"pad token {WORDS} is beyond the model's vocabulary of {WORDS} tokens"
    ):
        load_base(base, Settings())


def test_a_tokenizer_without_a_pad_token_gets_its_end_token(tmp_path):
    base = llama(tmp_path / "base")
    change(base / "tokenizer_config.json", pad_token=None, padding_side="left")
    assert AutoTokenizer.from_pretrained(base).pad_token is None
    model, tokenizer = load_base(base, Settings())
    end = tokenizer.eos_token_id
    assert classifier(model).config.pad_token_id == end
    export(model, tokenizer, base, tmp_path / "out", Settings())
    saved = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (saved.pad_token_id, saved.padding_side) == (end, "right")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.pad_token_id == end
    change(base / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ConfigurationError, match="neither a pad nor an end token"):
        load_base(base, Settings())


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def small(kind: Any, **more: Any) -> Any:
    common = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    return kind(**common | {"intermediate_size": 48} | more)


@pytest.mark.parametrize(
    ("config", "auto", "message"),
    [
        (small(transformers.BertConfig), transformers.AutoModelForMaskedLM, "BertForSequenceClassification has no"),
        (
            transformers.T5Config(vocab_size=WORDS, d_model=32, d_ff=48, num_layers=1, num_heads=4, d_kv=8),
            transformers.AutoModelForSeq2SeqLM,
            "has an encoder",
        ),
        (small(transformers.CohereConfig), AutoModelForCausalLM, "no sequence classifier for the text model 'cohere'"),
    ],
)
def test_what_cannot_be_a_value_model_is_refused(config, auto, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        load_base(folder_of(config, tmp_path, auto), Settings())


def test_code_from_the_folder_is_never_run(tmp_path):
    base, ran = llama(tmp_path / "base"), tmp_path / "ran"
    change(base / "config.json", model_type="homemade", auto_map={"AutoConfig": "homemade.Config"})
    (base / "homemade.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig\n"
        f"Path({str(ran)!r}).touch()\n"
        "class Config(LlamaConfig):\n"
        "    model_type = 'homemade'\n"
    )
    with pytest.raises(ConfigurationError, match="run code from its folder, which is not allowed"):
        load_base(base, Settings())
    assert not ran.exists()


def test_a_quantised_folder_is_refused(tmp_path):
    base = llama(tmp_path)
    change(base / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ConfigurationError, match="quantised already"):
        load_base(base, Settings())


def test_rows_stay_where_positions_are_not_stretched(tmp_path):
    factors = [1.0] * 4
    rope = _rope(rope_type="longrope", short_factor=factors, long_factor=[4.0] * 4)
    config = transformers.Phi3Config(
        **COMMON | {"vocab_size": WORDS, "pad_token_id": 1, "num_hidden_layers": 1},
        rope_parameters=rope,
        original_max_position_embeddings=32,
    )
    model = load_base(folder_of(config, tmp_path), Settings()).model
    assert context(model) == 32
    assert context(model, 20) == 20
    with pytest.raises(ConfigurationError, match=r"max_tokens is 33, .* at most 32 tokens"):
        context(model, 33)
    # Why: beyond that length, the first tokens' scores are others than in a short text.
    whole = torch.arange(4, 44)[None]
    with torch.no_grad():
        long, short = (
            classifier(model).model(input_ids=ids, use_cache=False).last_hidden_state[0, 20]
            for ids in (whole, whole[:, :32])
        )
    assert (long - short).abs().max() > 1e-3
    assert context(load_base(llama(tmp_path / "llama"), Settings()).model) == 128


def test_quantising_needs_bitsandbytes(tmp_path, monkeypatch):
    monkeypatch.setattr(value_model, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="'bitsandbytes' is required and not installed"):
        load_base(llama(tmp_path), Settings(quantize="4bit"))


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_four_bits_are_trained_on_and_written_out_in_full(dtype, tmp_path):
    wide = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.1}
    base = llama(tmp_path / "base", **wide)
    settings = Settings(dtype=dtype, quantize="4bit", gradient_checkpointing=True)
    model, tokenizer = load_base(base, settings)
    assert any(type(module).__name__ == "Linear4bit" for module in model.modules())
    assert {one.dtype for one in model.parameters() if one.requires_grad} == {torch.float32}
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    losses = []
    batch = collate(rows(), 1)
    for _ in range(20):
        loss = ((scores_at_marks(model.train(), batch) - batch["targets"]) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    values = np.concatenate(row_values(model, rows()))
    export(model, tokenizer, base, tmp_path / "out", settings)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert type(loaded.model.layers[0].mlp.up_proj) is torch.nn.Linear
    # bitsandbytes' kernel for the CPU computes in bfloat16.
    np.testing.assert_allclose(np.concatenate(row_values(loaded, rows())), values, atol=0.05 * np.ptp(values))


_HEAD = "base_model.model.score.modules_to_save.default.weight"
