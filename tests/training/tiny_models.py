"""Tiny random models of the usual families, and rows for them."""

from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

from amc_agents.training.value.rows import TargetRow

PAD = 0
COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.3,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda **more: transformers.LlamaConfig(**COMMON | more),
    "qwen2": lambda **more: transformers.Qwen2Config(**COMMON | more),
    "qwen3": lambda **more: transformers.Qwen3Config(**COMMON | {"head_dim": 8} | more),
    "gemma": lambda **more: transformers.GemmaConfig(**COMMON | {"head_dim": 8} | more),
    # Layers with a window of 8 tokens, and layers with full attention.
    "gemma3": lambda **more: transformers.Gemma3TextConfig(
        **COMMON | {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8} | more
    ),
    # Every layer has a window of 8 tokens.
    "mistral": lambda **more: transformers.MistralConfig(**COMMON | {"head_dim": 8, "sliding_window": 8} | more),
    "gpt2": lambda **more: transformers.GPT2Config(
        **{"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.3}
        | {"pad_token_id": PAD, "bos_token_id": None, "eos_token_id": None}
        | more
    ),
    "opt": lambda **more: transformers.OPTConfig(
        **{"vocab_size": 64, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"max_position_embeddings": 128, "word_embed_proj_dim": 32, "init_std": 0.3, "dropout": 0.0}
        | {"pad_token_id": PAD}
        | more
    ),
    "bloom": lambda **more: transformers.BloomConfig(
        **{"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
        | {"pad_token_id": PAD, "hidden_dropout": 0.0, "attention_dropout": 0.0}
        | more
    ),
    "gpt_oss": lambda **more: transformers.GptOssConfig(
        **COMMON | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8} | more
    ),
}


def rows(count: int = 3, states: int = 4, seed: int = 1) -> list[TargetRow]:
    """Rows of different lengths above 8 tokens, the size of the windows, with the last mark at the end."""
    draw = torch.Generator().manual_seed(seed)
    drawn = []
    for number in range(count):
        length = 14 + 5 * number
        ids = torch.randint(4, 64, (length,), generator=draw).tolist()
        earlier = sorted(torch.randperm(length - 3, generator=draw)[: states - 1].add(2).tolist())
        targets, weights = (torch.randn(states, generator=draw).tolist() for _ in range(2))
        drawn.append(
            TargetRow(
                ids=tuple(ids), marks=(*earlier, length - 1), states=tuple(range(states)), targets=tuple(targets),
                final=(*[False] * (states - 1), True), success=True,
                weights=tuple(abs(one) for one in weights),
            )
        )  # fmt: skip
    return drawn


def classifier_of(name: str, **more: Any) -> Any:
    """A float64 sequence classifier, in training mode."""
    torch.manual_seed(0)
    config = CONFIGS[name](num_labels=1, **more)
    return transformers.AutoModelForSequenceClassification.from_config(config).double().train()


def adapted(name: str, **more: Any) -> Any:
    """A `classifier_of` with LoRA on all linear layers, both matrices far from zero."""
    model = get_peft_model(
        classifier_of(name, **more), LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules="all-linear")
    )
    for name_, parameter in model.named_parameters():
        if "lora_B" in name_:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.double().train()


def norms_keep_their_type(model: Any) -> None:
    """Replace transformers' RMSNorm, which always computes in float32, by one in float64."""

    def normed(self: Any, hidden: Any) -> Any:
        scale = self.weight if hasattr(self, "variance_epsilon") else 1 + self.weight
        epsilon = getattr(self, "variance_epsilon", None) or self.eps
        return scale * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = normed.__get__(module)


def prefix_scores(model: Any, row: TargetRow) -> Any:
    """The scores of a row's states, one pass per prefix, through the classifier's own `forward`."""
    return torch.stack([model(input_ids=torch.tensor([row.ids[: mark + 1]])).logits[0, 0] for mark in row.marks])
