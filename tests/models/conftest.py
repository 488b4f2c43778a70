from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from amc_agents.models.chat import EngineChatModel

SPECIAL = ["<unk>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>"]
WORDS = [
    *(f" {metal} {part}" for metal in ("oak", "iron", "jade") for part in ("gate", "rod", "lamp")),
    *(" clay", " silk", " oak", " get", " using", " craft", "craft", "Got", "Goal:", "Thought:", "Action:"),
    *(f" {digit}" for digit in range(10)),
    *(str(digit) for digit in range(10)),
    *("\n", ",", ".", " [", "]", " "),
]
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + message['content'] + '<|end|>' }}{% else %}{{ '<|user|>' + message['content'] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    pattern = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True)) + "|."
    replacements = [("minecraft:", ""), ("_", " "), ("[", "[ ")]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[word], "content": word, **flags, "special": True} for word in SPECIAL],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": a}, "content": b} for a, b in replacements],
        },
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(
    folder: Path, *, heads: int = 3, kv_heads: int = 3, layers: int = 3, tied: bool = True, seed: int = 0
) -> None:
    """Random weights of the shipped shape."""
    hidden, dim, wide, vocab = 96, 32, 256, len(SPECIAL) + len(WORDS)
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 0.1, (rows, columns)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": 1 + matrix(1, hidden)[0]}
    for number in range(layers):
        name = f"model.layers.{number}."
        weights |= {
            name + "input_layernorm.weight": 1 + matrix(1, hidden)[0],
            name + "post_attention_layernorm.weight": 1 + matrix(1, hidden)[0],
            name + "self_attn.q_proj.weight": matrix(heads * dim, hidden),
            name + "self_attn.k_proj.weight": matrix(kv_heads * dim, hidden),
            name + "self_attn.v_proj.weight": matrix(kv_heads * dim, hidden),
            name + "self_attn.o_proj.weight": matrix(hidden, heads * dim),
            name + "mlp.gate_proj.weight": matrix(wide, hidden),
            name + "mlp.up_proj.weight": matrix(wide, hidden),
            name + "mlp.down_proj.weight": matrix(hidden, wide),
        }
    if not tied:
        weights["lm_head.weight"] = matrix(vocab, hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": hidden,
        "head_dim": dim,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        "tie_word_embeddings": tied,
        "vocab_size": vocab,
        "eos_token_id": 4,
        "pad_token_id": 1,
        "bos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(**shape: object) -> Path:
        folder = tmp_path_factory.mktemp("model")
        write_tokenizer(folder)
        write_model(folder, **shape)
        return folder

    return make


@pytest.fixture(scope="session")
def model_folder(make_folder: Callable[..., Path]) -> Path:
    """A model of the shipped shape with random weights and a small vocabulary."""
    return make_folder()


TEXT_OF_BYTES = "a \u00e9\u6f22\u5b57 \U0001f642\u0301!"
"""Characters of one to four bytes."""


@pytest.fixture
def writes_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make a chat model generate this text, one byte per token, like byte-level tokenizers."""

    def generate_bytes(model: EngineChatModel) -> str:
        decoder, written = model._engine().batcher.decoder, TEXT_OF_BYTES.encode()
        monkeypatch.setattr(decoder, "decode", lambda tokens: written[: len(tokens)].decode(errors="replace"))
        monkeypatch.setattr(decoder, "end_tokens", frozenset())
        model.max_tokens = len(written)
        return TEXT_OF_BYTES

    return generate_bytes
