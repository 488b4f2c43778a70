"""What every fine-tuning of a language model shares: encoder, limits, learning rate, and the saved adapter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from amc_agents.critics.render import Encoder, PromptFormat
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.models.tokenizers import TemplateTokenizer

try:
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers.utils import logging
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


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


def warm_up_and_cosine(step: int, steps: int, warm_up: float) -> float:
    """Factor on the peak learning rate at a step: linear warm-up, then cosine decay to 0.

    Args:
        step: number of the step, from 0.
        steps: steps of the whole training.
        warm_up: share of the steps that warm up.

    >>> [round(warm_up_and_cosine(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    n_warm_up = max(1, round(warm_up * steps))
    if step < n_warm_up:
        return (step + 1) / n_warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - n_warm_up) / max(1, steps - n_warm_up)))


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
