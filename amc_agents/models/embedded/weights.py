"""The weights of a Llama: read from a Hugging Face folder, merged with a LoRA adapter, exported for other programs."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import read_json_object
from amc_agents.models.engine import Float32Array
from amc_agents.quoting import excerpt, quoted

Weights = dict[str, Float32Array]

_PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama."""

    hidden: int
    """Width of the residual stream (D)."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the feed-forward block."""
    vocab: int
    rope_theta: float
    norm_eps: float
    context: int
    """Maximum number of tokens of a sequence."""
    end_tokens: frozenset[int]
    pad_token: int | None
    tied: bool
    """True if the output matrix is the transpose of the embedding."""

    def __post_init__(self) -> None:
        """Check types and ranges. Raises `CheckpointError`."""
        sizes = (self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.intermediate, self.vocab)
        for size in (*sizes, self.context):
            if type(size) is not int or not 0 < size < 1 << 31:
                raise CheckpointError(f"config.json: expected a positive integer as a size, got {quoted(size, 40)}")
        if not all(type(token) is int for token in (*self.end_tokens, self.pad_token or 0)):
            raise CheckpointError("config.json: expected token ids as eos_token_id and pad_token_id")
        if not (self.rope_theta > 0 and self.norm_eps > 0):
            raise CheckpointError(
                f"config.json: expected positive numbers as rope_theta and rms_norm_eps, got {self.rope_theta:g} and "
                f"{self.norm_eps:g}"
            )

    @classmethod
    def from_folder(cls, folder: str | Path) -> LlamaConfig:
        """Read `config.json`. Raises `CheckpointError` unless it describes a plain Llama."""
        data = read_json(Path(folder) / "config.json")
        rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
        _require(data, "model_type", "llama")
        _require(data, "hidden_act", "silu", "silu")
        _require(data, "attention_bias", False, False)
        _require(data, "mlp_bias", False, False)
        _require(rope, "rope_type", "default", "default")
        heads = data["num_attention_heads"]
        ends = data.get("eos_token_id")
        return cls(
            hidden=data["hidden_size"],
            layers=data["num_hidden_layers"],
            heads=heads,
            kv_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or data["hidden_size"] // heads,
            intermediate=data["intermediate_size"],
            vocab=data["vocab_size"],
            rope_theta=float(rope.get("rope_theta") or data.get("rope_theta") or 10_000.0),
            norm_eps=data["rms_norm_eps"],
            context=data["max_position_embeddings"],
            end_tokens=frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends),
            pad_token=data.get("pad_token_id"),
            tied=bool(data.get("tie_word_embeddings", False)),
        )


def read_weights(folder: str | Path) -> Weights:
    """Read all tensors of `model.safetensors` (fp16 or fp32) as float32. Raises `CheckpointError`."""
    return _read_tensors(Path(folder) / "model.safetensors")


def merge_adapter(weights: Weights, folder: str | Path) -> Weights:
    """Add a LoRA adapter to weights: W + scale * B @ A, with scale = alpha / r.

    Matrices that the adapter contains in full (a `score` head) replace those of the model.

    Raises:
        CheckpointError: the adapter uses more than plain LoRA, or does not fit the model.
    """
    folder = Path(folder)
    config = read_json(folder / "adapter_config.json")
    for key in ("use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise CheckpointError(f"adapter {folder.name}: {key}={quoted(config[key])} is not supported")
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    merged = dict(weights)
    tensors = _read_tensors(folder / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        target = name.removeprefix(_PEFT_PREFIX)
        if target.endswith(".lora_B.weight"):
            continue
        if not target.endswith(".lora_A.weight"):
            if ".lora_" in target:
                raise CheckpointError(f"adapter {folder.name}: tensor {name} is not supported")
            merged[target] = tensor
            continue
        base = target.removesuffix(".lora_A.weight") + ".weight"
        other = tensors.get(name.removesuffix("lora_A.weight") + "lora_B.weight")
        if base not in merged or other is None:
            raise CheckpointError(f"adapter {folder.name}: {name} has no counterpart in the adapter or the model")
        merged[base] = merged[base] + np.float32(scale) * (other @ tensor)
    return merged


@contextmanager
def read_as_saved(folder: str | Path) -> Iterator[None]:
    """Turn errors inside the block into a `CheckpointError` about the folder's files."""
    try:
        yield
    except CheckpointError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = excerpt(f"{type(error).__name__}: {error}")
        raise CheckpointError(
            f"{folder}: its files do not match each other, or are incomplete ({reason}): copy the folder again"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a model folder's JSON file. Raises `CheckpointError`."""
    return read_json_object(path, remedy="expected a model folder; copy it again")


def _read_tensors(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"{path} is missing: not a model folder?")
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                dtype = file.get_slice(name).get_dtype()
                if dtype not in ("F16", "F32"):
                    raise CheckpointError(f"{path.name}: {name} has type {dtype}, expected F16 or F32; save it as fp16")
            return {name: file.get_tensor(name).astype(np.float32) for name in names}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged or cut off ({excerpt(str(error))}): copy it again, and check that large files were "
            "fetched, not only their pointers (git lfs pull)"
        ) from error


def _require(data: Mapping[str, Any], key: str, expected: Any, default: Any = None) -> None:
    if data.get(key, default) != expected:
        raise CheckpointError(f"config.json: expected {key}={quoted(expected)}, got {quoted(data.get(key))}")


def model_folder(name: str | Path) -> Path:
    """Return the folder of a shipped model, or `name` itself if it is a model folder.

    Raises:
        ConfigurationError: `name` is neither.
    """
    for folder in (SHIPPED / name, Path(name)):
        if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
            return folder.resolve()
    shipped = sorted(shipped_names())
    raise ConfigurationError(
        f"no model {quoted(str(name), 200)}: expected a shipped model ({', '.join(shipped) or 'none installed'}) or a "
        "folder with config.json, tokenizer.json and model.safetensors"
    )


def shipped_names() -> set[str]:
    """The names of the shipped models."""
    return {path.parent.name for path in SHIPPED.glob("*/config.json")}


SHIPPED = Path(__file__).parent
"""The folder of the shipped models."""


def export_merged(
    folder: Path,
    adapter: Path,
    out: Path,
    *,
    config: Mapping[str, Any],
    copied: Iterable[Path],
    without: Iterable[str] = (),
) -> Path:
    """Merge an adapter into a policy and write the model in float32, atomically.

    Args:
        folder: the policy's folder.
        adapter: the adapter's folder.
        out: the folder to write; it must be new or empty.
        config: changes to the policy's config.json.
        copied: further files of the new folder.
        without: names of tensors to leave out.

    Returns:
        `out`.

    Raises:
        CheckpointError: a folder is not a policy's or an adapter's, or they do not match.
        ConfigurationError: `out` is not empty.
    """
    from safetensors.numpy import save

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is not empty: choose another folder, or remove it first")
    merged = merge_adapter(read_weights(folder), adapter)
    for name in without:
        merged.pop(name, None)
    out.parent.mkdir(parents=True, exist_ok=True)
    # In the same parent folder, so that a rename completes the export.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(save(merged, metadata={"format": "pt"}))
        settings = read_json(folder / "config.json") | {"dtype": "float32", **config}
        (model / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for file in copied:
            shutil.copyfile(file, model / file.name)
        model.rename(out)
    return out
