"""Load a sequence classifier over the text model of a transformers folder.

A value model reads only text. From a vision-language model, only the text tower is loaded: it trains and serves as a
plain text model, needs less memory, and gets all the adapters. If transformers has no classifier for the tower's class,
but one for the same computation under another name, that classifier is used after a comparison of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.quoting import quoted
from amc_agents.training.value.one_pass_checks import has_weights

try:
    import torch
    from torch import Tensor
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
    )
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def load_classifier(base: str | Path, options: Mapping[str, Any]) -> Any:
    """Load a sequence classifier with one label and without dropout. Torch's global generator initialises its head.

    Args:
        base: folder of a causal language model or a vision-language model. Code from the folder is never run.
        options: further arguments of `from_pretrained`: dtype, attn_implementation, quantization_config, device_map.

    Raises:
        ConfigurationError: transformers cannot load such a classifier from the folder; the message gives the reason.
    """
    try:
        config = AutoConfig.from_pretrained(str(base), trust_remote_code=False)
    except ValueError as error:
        raise ConfigurationError(
            f"{base}: transformers does not know this model, or would have to run code from its folder, which is not "
            f"allowed ({error}). Use a model whose class is part of transformers"
        ) from error
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigurationError(
            f"{base} is quantised already, and an adapter cannot be merged into it: use the unquantised model, with "
            'quantize="4bit" to save memory'
        )
    if config.is_encoder_decoder:
        raise ConfigurationError(f"{base} ({config.model_type}) has an encoder: use a decoder-only base model")
    text = config.get_text_config(decoder=True)
    _dropout_off(config, text)
    if text is not config:
        return _of_tower(base, config, text, options)
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ConfigurationError(_no_class(base, config.model_type))
    config.num_labels = 1
    return AutoModelForSequenceClassification.from_pretrained(
        str(base), config=config, trust_remote_code=False, **options
    )


def _of_tower(base: str | Path, config: Any, text: Any, options: Mapping[str, Any]) -> Any:
    """Load the classifier over the text tower of a vision-language model."""
    kind = _SAME_ARITHMETIC.get(text.model_type, text.model_type)
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ConfigurationError(_no_class(base, text.model_type))
    loading = {name: value for name, value in options.items() if name in ("dtype", "attn_implementation")}
    tower = AutoModel.from_pretrained(str(base), config=config, trust_remote_code=False, **loading).get_decoder().eval()
    plain = text if kind == text.model_type else _renamed(text, CONFIG_MAPPING[kind], tower)
    plain.num_labels = 1
    plain_class: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[CONFIG_MAPPING[kind]]
    prefix = plain_class.base_model_prefix
    weights = {f"{prefix}.{name}": tensor for name, tensor in _text_weights(tower, text).items()}
    model = plain_class.from_pretrained(None, config=plain, state_dict=weights, **options)
    model.name_or_path = str(base)
    if not options.get("quantization_config") and has_weights():
        _compare(base, tower, getattr(model, prefix))
    return model


def _renamed(text: Any, kind: Any, tower: Any) -> Any:
    """Return a config of the plain class with the tower's values."""
    known = {name: value for name, value in text.to_dict().items() if name in kind().to_dict()}
    skipped = len(getattr(text, "cross_attention_layers", None) or ())
    known |= {
        "vocab_size": tower.get_input_embeddings().num_embeddings,
        "num_hidden_layers": text.num_hidden_layers - skipped,
        "rope_parameters": {
            name: value for name, value in text.rope_parameters.items() if not name.startswith("mrope")
        },
    }
    for name in ("model_type", "architectures", "layer_types" if skipped else ""):
        known.pop(name, None)
    return kind(**known)


def _text_weights(tower: Any, text: Any) -> dict[str, Tensor]:
    """Return the tower's weights without the layers that only read images, which are skipped for a text."""
    skipped = set(getattr(text, "cross_attention_layers", None) or ())
    kept = [layer for layer in range(text.num_hidden_layers) if layer not in skipped]
    number = {str(old): str(new) for new, old in enumerate(kept)}
    weights = {}
    for name, tensor in tower.state_dict().items():
        parts = name.split(".")
        if parts[0] == "layers":
            if parts[1] not in number:
                continue
            parts[1] = number[parts[1]]
        weights[".".join(parts)] = tensor
    return weights


def _compare(base: str | Path, tower: Any, transformer: Any) -> None:
    """Raise `ConfigurationError` unless both models give the same hidden states for a text."""
    ids = torch.arange(3, 35)[None] % tower.get_input_embeddings().num_embeddings
    with torch.no_grad():
        expected, actual = (
            model(input_ids=ids.to(model.device), use_cache=False).last_hidden_state.float().cpu()
            for model in (tower, transformer.eval())
        )
    error = float((actual - expected).norm() / expected.norm())
    if not error <= 10 * torch.finfo(transformer.dtype).eps:
        raise ConfigurationError(
            f"{base}: its text tower {type(tower).__name__} and {type(transformer).__name__} with the same weights "
            f"differ by {error:.1e} in their hidden states. This version of transformers computes them differently: "
            "use a text-only model"
        )


def _dropout_off(*configs: Any) -> None:
    """Set all dropout of the base model to 0. With dropout, one pass would not give the scores of the prefixes."""
    for config in configs:
        for name, value in vars(config).items():
            if "drop" in name and isinstance(value, float) and value > 0:
                setattr(config, name, 0.0)


def _no_class(base: str | Path, kind: str) -> str:
    return (
        f"{base}: transformers has no sequence classifier for the text model {quoted(kind)}, so that the trained model "
        "could not be loaded. Use a decoder-only model that has one (Llama, Qwen2, Qwen3, Gemma, Mistral, Phi, ...)"
    )


_SAME_ARITHMETIC = {
    # Without an image its cross-attention layers are skipped, and the remaining layers are Llama's.
    "mllama_text_model": "llama",
    # For a text, all three components of their rotary positions are equal: the usual rotary position.
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
"""Map from text towers without a classifier to the model type with the same computation for texts."""
