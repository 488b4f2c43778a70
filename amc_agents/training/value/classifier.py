"""Turn a causal language model into a value model (LoRA and a scalar head), and export a trained one for serving.

A value model reads only text. From a vision-language model, only the text tower is loaded: it trains and serves as a
plain text model, needs less memory, and gets all the adapters. If transformers has no classifier for the tower's class,
but one for the same computation under another name, that classifier is used after a comparison of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.quoting import quoted
from amc_agents.training.fine_tuning import pad_token, quiet, save_adapter
from amc_agents.training.settings import ValueTrainingSettings
from amc_agents.training.value.one_pass import check_one_pass, classifier, has_weights, read_at_marks

try:
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from torch import Tensor
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        BitsAndBytesConfig,
    )
    from transformers.pytorch_utils import Conv1D
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class LoadedBase(NamedTuple):
    """The model and the tokenizer that a training starts from."""

    model: Any
    """A `PeftModel` over a sequence classifier with one label."""
    tokenizer: Any


def load_base(base: str | Path, settings: ValueTrainingSettings) -> LoadedBase:
    """Load a causal model with a new adapter and a new scalar head, and check that it can be scored in one pass.

    The base model's weights are frozen and its dropout is off; adapter and head are float32. Rows are padded on the
    right. Code from the folder is never run.

    Args:
        base: folder of a causal language model and its tokenizer. Of a vision-language model, the text tower is loaded.
        settings: rank, data type, device, ...

    Raises:
        ConfigurationError: the model cannot be a value model; the message gives the reason.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(base), trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    # Torch's global generator initialises the head and the adapter: seed it, and restore it afterwards.
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(settings.seed)
        options = _loading(settings)
        try:
            model = load_classifier(base, options)
        except ImportError as error:
            raise ConfigurationError(f"attention={quoted(settings.attention)} cannot be used here: {error}") from error
        wrapped = with_adapter(model, settings, pad_token(tokenizer, model))
    check_one_pass(wrapped)
    return LoadedBase(wrapped, tokenizer)


def with_adapter(model: Any, settings: ValueTrainingSettings, pad_id: int) -> Any:
    """Add an adapter to a sequence classifier, and prepare it for passes over whole trajectories.

    Args:
        model: from `load_classifier`, or created from a config.
        settings: rank, gradient checkpointing, ...
        pad_id: the padding token.

    Returns:
        A `PeftModel`.
    """
    inner = classifier(model)
    inner.config.get_text_config().pad_token_id = pad_id
    _head_in_float32(inner)
    wrapped: Any = get_peft_model(model, _adapter(inner, settings))
    if settings.gradient_checkpointing:
        # Reentrant checkpointing would need gradients of the frozen embeddings.
        wrapped.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    read_at_marks(inner)
    return wrapped if settings.quantize is not None else wrapped.to(settings.device)


def export(model: Any, tokenizer: Any, base: str | Path, folder: str | Path, settings: ValueTrainingSettings) -> Any:
    """Write the merged `AutoModelForSequenceClassification`, its tokenizer, and `adapter/` (float16) to a folder.

    The adapter of a quantised model is merged into the dequantised base, so that the folder gives the scores of
    training. The adapter was trained to correct the quantised base, not the original one.

    Args:
        model: the trained model from `load_base`; unusable afterwards.
        tokenizer: the tokenizer from `load_base`.
        base: the base model's folder, as passed to `load_base`.
        folder: folder to write; created if missing.
        settings: as passed to `load_base`.

    Returns:
        The merged classifier, equal to the one that is loaded from the folder.
    """
    folder = Path(folder)
    save_adapter(model, folder / "adapter")
    with quiet():
        merged = (model if settings.quantize is None else _dequantized(model, base, settings)).merge_and_unload()
        classifier(merged).score.to(getattr(torch, settings.dtype))
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return merged.eval()


def _loading(settings: ValueTrainingSettings) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for the settings."""
    dtype = getattr(torch, settings.dtype)
    options: dict[str, Any] = {"dtype": dtype}
    if settings.attention != "auto":
        if settings.attention == "flex_attention" and settings.device == "cpu":
            raise ConfigurationError("torch's flex attention has no backward pass on the CPU: use attention='sdpa'")
        options["attn_implementation"] = settings.attention
    if settings.quantize is not None:
        if find_spec("bitsandbytes") is None:
            raise MissingExtra("bitsandbytes", "qlora")
        quantization: Any = BitsAndBytesConfig
        options["quantization_config"] = quantization(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            # FSDP shards it like any other weight of this type.
            bnb_4bit_quant_storage=dtype,
        )
        on_cuda = settings.device.startswith("cuda")
        options["device_map"] = {"": torch.cuda.current_device() if on_cuda else settings.device}
    return options


def _adapter(inner: Any, settings: ValueTrainingSettings) -> LoraConfig:
    targets = settings.lora_targets
    return LoraConfig(
        task_type="SEQ_CLS",
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        # GPT-2's layers keep their matrices transposed.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in inner.modules()),
    )


def _head_in_float32(inner: Any) -> None:
    """Convert the head, and its inputs, to float32. A bfloat16 head would round small steps away."""
    inner.score.float()
    inner.score.register_forward_pre_hook(lambda module, inputs: (inputs[0].to(module.weight.dtype),))


def _dequantized(model: Any, base: str | Path, settings: ValueTrainingSettings) -> Any:
    """Return the trained adapter and head over the dequantised base model."""
    full = load_classifier(base, _loading(settings)).dequantize()
    inner = classifier(full)
    inner.config.get_text_config().pad_token_id = classifier(model).config.get_text_config().pad_token_id
    _head_in_float32(inner)
    wrapped = get_peft_model(full, _adapter(inner, settings))
    set_peft_model_state_dict(wrapped, get_peft_model_state_dict(model, save_embedding_layers=False))
    return wrapped


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
