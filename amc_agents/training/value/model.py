"""A causal language model becomes a value model (LoRA and a scalar head), and after training a folder to serve."""

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
    """The settings of a training that concern the model; `ValueTrainingSettings` has them."""

    @property
    def lora_rank(self) -> int:
        """Rank r of the adapter."""

    @property
    def lora_alpha(self) -> int:
        """The adapter's output is scaled by alpha / r."""

    @property
    def lora_targets(self) -> str | Sequence[str]:
        """Modules that get an adapter, as PEFT names them: "all-linear", names, or one regular expression."""

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Number type of the base model, and of the exported folder. Adapter and head train in float32."""

    @property
    def device(self) -> str:
        """Where torch computes; "cuda" under torchrun: the process's own."""

    @property
    def attention(self) -> str:
        """`attn_implementation` of transformers, or "auto": its choice (SDPA where the model has it)."""

    @property
    def gradient_checkpointing(self) -> bool:
        """Keep only the layers' inputs for the backward pass and compute the rest again."""

    @property
    def quantize(self) -> Literal["4bit"] | None:
        """QLoRA: the base model's linear layers in 4 bits (NF4, bitsandbytes)."""

    @property
    def seed(self) -> int:
        """Of the adapter and the head."""


class LoadedBase(NamedTuple):
    """What training starts from."""

    model: Any
    """A `PeftModel` over a sequence classifier with one label."""
    tokenizer: Any


def load_base(base: str | Path, settings: ModelSettings) -> LoadedBase:
    """Loads a causal model with a new adapter and a new scalar head, and checks that one pass is what it should be.

    The base model's weights are frozen and its dropout is off; adapter and head are float32. Rows are padded on the
    right. Code from the folder is never run.

    Args:
        base: folder of a causal language model and its tokenizer; of one that also sees, its text tower is taken.
        settings: rank, number type, device, ...

    Raises:
        ConfigurationError: the model cannot be a value model; the message says why.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(base), trust_remote_code=False)
    pad_id = pad_token(tokenizer)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    # The head and the adapter are drawn from torch's global generator: seed it, and leave it as it was.
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(settings.seed)
        options = _loading(settings)
        try:
            model = load_classifier(base, options)
        except ImportError as error:
            raise ConfigurationError(f"attention={settings.attention!r} cannot be used here: {error}") from error
        wrapped = with_adapter(model, settings, pad_id)
    check_one_pass(wrapped)
    return LoadedBase(wrapped, tokenizer)


def with_adapter(model: Any, settings: ModelSettings, pad_id: int) -> Any:
    """A sequence classifier with a new adapter, ready for passes over whole trajectories: a `PeftModel`.

    Args:
        model: from `load_classifier`, or made from a config.
        settings: rank, gradient checkpointing, ...
        pad_id: the token that fills up rows.
    """
    inner = classifier(model)
    inner.config.get_text_config().pad_token_id = pad_id
    _head_in_float32(inner)
    wrapped: Any = get_peft_model(model, _adapter(inner, settings))
    if settings.gradient_checkpointing:
        # With reentrance gradients would have to pass through the frozen embeddings.
        wrapped.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    read_at_marks(inner)
    return wrapped if settings.quantize is not None else wrapped.to(settings.device)


def export(model: Any, tokenizer: Any, base: str | Path, folder: str | Path, settings: ModelSettings) -> Any:
    """Writes the merged `AutoModelForSequenceClassification`, its tokenizer, and `adapter/` (float16) into a folder.

    Of a quantised model the base is written out as the 4 bits say, the adapter merged into that: the folder's scores
    are those of training. (Merged into the base as it was before, the adapter would miss the model that it corrects.)

    Args:
        model: what `load_base` gave, trained; it is taken apart.
        tokenizer: likewise.
        base: what was given to `load_base`.
        folder: made if need be.
        settings: likewise.

    Returns:
        The merged classifier, as others will load it: what is measured on it is what is served.
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
    """An encoder over a transformers tokenizer; a beginning-of-text token goes first where the tokenizer has one."""
    bos = [tokenizer.bos_token_id]
    prefix_ids = bos if tokenizer("")["input_ids"] == bos else []
    return Encoder(prompt_format, TemplateTokenizer.of_transformers(tokenizer), max_tokens, prefix_ids)


def pad_token(tokenizer: Any) -> int:
    """The id that fills up rows: the pad token, or else the end token. Raises `ConfigurationError` without either."""
    token = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if token is None:
        raise ConfigurationError("the tokenizer has neither a pad nor an end token: last-token pooling needs one")
    return int(token)


def context(model: Any, max_tokens: int | None = None) -> int | None:
    """The most tokens of a row: `max_tokens`, or else what the model takes; None: it does not say.

    Raises:
        ConfigurationError: `max_tokens` is more than the model takes; or rotary positions are then stretched by the
            text's length (dynamic, longrope), so that a prefix has other positions in a longer row than alone.
    """
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if one.get("rope_type") == "longrope":
            limit = one["original_max_position_embeddings"]
    if max_tokens is not None and limit is not None and max_tokens > limit:
        raise ConfigurationError(
            f"max_tokens is {max_tokens}, and this model gives a prefix its own score in texts of at most {limit} "
            "tokens: lower max_tokens, or leave it out"
        )
    limit = max_tokens or limit
    return None if limit is None else int(limit)


def round_to_half(model: Any) -> None:
    """Rounds what is trained to float16, as the adapter is kept: what is measured then is what is kept."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.half().to(parameter.dtype))


def save_adapter(model: Any, folder: Path) -> None:
    """Writes a `PeftModel`'s adapter and head, in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    # Embeddings are not trained; whether they might be, peft would ask the hub.
    trained = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: tensor.half().cpu().contiguous() for name, tensor in trained.items()}
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = copy(model.peft_config["default"])
    if isinstance(config.target_modules, set):
        # A set's order differs between processes; the same training writes the same bytes.
        config.target_modules = sorted(config.target_modules)
    config.save_pretrained(str(folder))


def _loading(settings: ModelSettings) -> dict[str, Any]:
    """The settings as arguments of `from_pretrained`."""
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
            # Sharded (FSDP) like any other weight of this type.
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
    """Small steps would be lost in a head of bfloat16; what comes to it is converted."""
    inner.score.float()
    inner.score.register_forward_pre_hook(lambda module, given: (given[0].to(module.weight.dtype),))


def _dequantized(model: Any, base: str | Path, settings: ModelSettings) -> Any:
    """The trained adapter and head over the base model that they were trained on, its 4 bits written out in full."""
    full = load_classifier(base, _loading(settings)).dequantize()
    inner = classifier(full)
    inner.config.get_text_config().pad_token_id = classifier(model).config.get_text_config().pad_token_id
    _head_in_float32(inner)
    wrapped = get_peft_model(full, _adapter(inner, settings))
    set_peft_model_state_dict(wrapped, get_peft_model_state_dict(model, save_embedding_layers=False))
    return wrapped


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers and peft report of a new head, as if it were a mistake."""
    reports: Any = logging
    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # peft uses what transformers deprecates.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()
