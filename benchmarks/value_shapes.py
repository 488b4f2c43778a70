"""Models and trajectories of `one_pass_training.py`: random weights from a config, random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, Qwen2Config

from amc_agents.training.fine_tuning import quiet
from amc_agents.training.settings import ValueTrainingSettings
from amc_agents.training.value.classifier import with_adapter
from amc_agents.training.value.one_pass import classifier
from amc_agents.training.value.rows import TargetRow

PAD = 0
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "config": LlamaConfig, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 4096,
    },
    "llama-3.1-8b": {
        "config": LlamaConfig, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
    },
    "qwen2.5-3b": {
        "config": Qwen2Config, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A model as `amc train value` trains it."""

    model: Any
    parameters: int
    """Parameters of the base without embeddings: those that are multiplied with every token."""
    embeddings: int
    """Parameters of the embeddings."""
    adapter: int
    """Trainable parameters: LoRA and head."""


def make(shape: str, changed: dict[str, int], settings: ValueTrainingSettings) -> Trained:
    """Create a model of random weights on its device, with LoRA of rank 8 on all linear layers, the default."""
    sizes = {name: value for name, value in SHAPES[shape].items() if name != "config"} | changed
    config = SHAPES[shape]["config"](**sizes, num_labels=1, pad_token_id=PAD)
    options = {} if settings.attention == "auto" else {"attn_implementation": settings.attention}
    torch.manual_seed(0)
    with quiet(), torch.device(settings.device):
        model: Any = AutoModelForSequenceClassification.from_config(
            config, dtype=getattr(torch, settings.dtype), **options
        )
        embeddings = model.get_input_embeddings().weight.numel()
        whole = sum(parameter.numel() for parameter in model.parameters())
        wrapped = with_adapter(model, settings, PAD)
    adapter = sum(parameter.numel() for parameter in wrapped.parameters() if parameter.requires_grad)
    return Trained(wrapped.train(), whole - embeddings, embeddings, adapter)


def set_checkpointing(model: Any, wanted: bool) -> None:
    """Turn the recomputation of activations for the backward pass on or off."""
    inner = classifier(model)
    with quiet():
        if wanted:
            inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        elif inner.is_gradient_checkpointing:
            inner.gradient_checkpointing_disable()


def trajectories(count: int, steps: int, tokens: int, vocabulary: int, spread: float = 0.25) -> list[TargetRow]:
    """Return random trajectories of `steps` steps and about `tokens` tokens, an eighth of them the task.

    Lengths vary by a share of `spread`.
    """
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        opening = tokens // 8
        each = (tokens - opening) / steps
        rounds = np.maximum(2, rng.uniform((1 - spread) * each, (1 + spread) * each, steps).round())
        whole = rng.uniform(1 - spread, 1 + spread)
        ends = np.cumsum(np.maximum(2, np.array([opening, *rounds]) * whole).astype(int))
        ids = rng.integers(PAD + 1, vocabulary, int(ends[-1])).tolist()
        targets = tuple(rng.random(steps + 1).tolist())
        rows.append(
            TargetRow(
                tuple(ids), tuple((ends - 1).tolist()), tuple(range(steps + 1)), targets,
                (*(False,) * steps, True), True, (1.0,) * (steps + 1),
            )
        )  # fmt: skip
    return rows


def prefixes(rows: Sequence[TargetRow]) -> list[TargetRow]:
    """Return a separate row for each state, scored only at its last token."""
    return [
        TargetRow(row.ids[: mark + 1], (mark,), (state,), (target,), (final,), row.success, (1.0,))
        for row in rows
        for mark, state, target, final in zip(row.marks, row.states, row.targets, row.final, strict=True)
    ]
