"""Turn a causal language model into a value model (LoRA and a scalar head), and export a trained one for serving."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from amc_agents.critics.render import Encoder, PromptFormat
from amc_agents.critics.tokenizing import TemplateTokenizer
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.quoting import quoted
from amc_agents.training.value.one_pass import classifier, read_at_marks
from amc_agents.training.value.one_pass_checks import check_one_pass
from amc_agents.training.value.text_tower import load_classifier

try:
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, BitsAndBytesConfig
    from transformers.pytorch_utils import Conv1D
    from transformers.utils import logging
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class ModelSettings(Protocol):
    """The settings that concern the model, a part of `ValueTrainingSettings`."""

    @property
    def lora_rank(self) -> int:
        """Rank r of the adapter."""

    @property
    def lora_alpha(self) -> int:
        """The adapter's output is scaled by alpha / r."""

    @property
    def lora_targets(self) -> str | Sequence[str]:
        """Modules that get an adapter, in PEFT's terms: "all-linear", names, or a regular expression."""

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Data type of the base model and of the exported folder. Adapter and head train in float32."""

    @property
    def device(self) -> str:
        """Torch device; "cuda" under torchrun is the device of the process."""

    @property
    def attention(self) -> str:
        """`attn_implementation` of transformers; "auto": transformers chooses (SDPA if the model supports it)."""

    @property
    def gradient_checkpointing(self) -> bool:
        """Keep only the layers' inputs for the backward pass and recompute the rest."""

    @property
    def quantize(self) -> Literal["4bit"] | None:
        """QLoRA: hold the base model's linear layers in 4 bits (NF4, bitsandbytes)."""

    @property
    def seed(self) -> int:
        """Seed of the adapter and the head."""


class LoadedBase(NamedTuple):
    """The model and the tokenizer that a training starts from."""

    model: Any
    """A `PeftModel` over a sequence classifier with one label."""
    tokenizer: Any


def load_base(base: str | Path, settings: ModelSettings) -> LoadedBase:
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


def with_adapter(model: Any, settings: ModelSettings, pad_id: int) -> Any:
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


def export(model: Any, tokenizer: Any, base: str | Path, folder: str | Path, settings: ModelSettings) -> Any:
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


def make_encoder(tokenizer: Any, prompt_format: PromptFormat, max_tokens: int | None) -> Encoder:
    """Return an encoder over a transformers tokenizer. Its prefix is the beginning-of-text token, if there is one."""
    bos = [tokenizer.bos_token_id]
    prefix_ids = bos if tokenizer("")["input_ids"] == bos else []
    return Encoder(prompt_format, TemplateTokenizer.of_transformers(tokenizer), max_tokens, prefix_ids)


def pad_token(tokenizer: Any, model: Any) -> int:
    """Return the id of the pad token, or of the end token.

    Raises:
        ConfigurationError: the tokenizer has neither, or the token has no row in the model's embeddings: a model that
            was trained with it could not be loaded again.
    """
    token = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if token is None:
        raise ConfigurationError("the tokenizer has neither a pad nor an end token: last-token pooling needs one")
    known = model.get_input_embeddings().weight.shape[0]
    if not 0 <= token < known:
        raise ConfigurationError(
            f"the tokenizer's pad token {token} is beyond the model's vocabulary of {known} tokens, so the trained "
            "model could not be loaded: set another pad_token in the base model's tokenizer_config.json, or enlarge "
            "the embeddings (resize_token_embeddings) and save the base model"
        )
    return int(token)


def context(model: Any, max_tokens: int | None = None) -> int | None:
    """Return the token limit of a row: `max_tokens`, or else the model's limit; None if the model has none.

    Raises:
        ConfigurationError: `max_tokens` exceeds the model's limit, or the length from which longrope scales rotary
            positions by the length of the text, so that a prefix has other positions in a longer row than alone.
    """
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") == "longrope":
            limit = parameters["original_max_position_embeddings"]
    if max_tokens is not None and limit is not None and max_tokens > limit:
        raise ConfigurationError(
            f"max_tokens is {max_tokens}, but this model scores prefixes correctly only in texts of at most {limit} "
            "tokens: lower max_tokens, or leave it out"
        )
    limit = max_tokens or limit
    return None if limit is None else int(limit)


def round_to_half(model: Any) -> None:
    """Round the trained parameters to float16, the precision in which the adapter is saved."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.half().to(parameter.dtype))


def save_adapter(model: Any, folder: Path) -> None:
    """Write a `PeftModel`'s adapter and head, in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    # Embeddings are not trained. Without this argument, peft would query the hub to find that out.
    trained = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: tensor.half().cpu().contiguous() for name, tensor in trained.items()}
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = copy(model.peft_config["default"])
    if isinstance(config.target_modules, set):
        # The order of a set differs between processes, and the same training should write the same bytes.
        config.target_modules = sorted(config.target_modules)
    config.save_pretrained(str(folder))


def _loading(settings: ModelSettings) -> dict[str, Any]:
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


def _adapter(inner: Any, settings: ModelSettings) -> LoraConfig:
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


def _dequantized(model: Any, base: str | Path, settings: ModelSettings) -> Any:
    """Return the trained adapter and head over the dequantised base model."""
    full = load_classifier(base, _loading(settings)).dequantize()
    inner = classifier(full)
    inner.config.get_text_config().pad_token_id = classifier(model).config.get_text_config().pad_token_id
    _head_in_float32(inner)
    wrapped = get_peft_model(full, _adapter(inner, settings))
    set_peft_model_state_dict(wrapped, get_peft_model_state_dict(model, save_embedding_layers=False))
    return wrapped


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers and peft, for example about a new head."""
    reports: Any = logging
    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # peft uses deprecated functions of transformers.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()
