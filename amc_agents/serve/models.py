"""What a vLLM server is to serve: a folder or a hub's name, and what is to be known of it before the start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import amc_agents.models.embedded
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint, weights_hash
from amc_agents.critics.value.embedded import ADAPTER
from amc_agents.errors import CheckpointError
from amc_agents.quoting import excerpt, quoted

Role = Literal["value", "policy", "embeddings"]

NUMBER_TYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ServedModel:
    """A model and the settings that its own files ask for."""

    role: Role
    source: str
    """Its folder, or its name on a hub."""
    name: str
    """What requests call it."""
    dtype: str = "auto"
    """Number type; "auto" where nothing is known, and vLLM chooses (float16 for a float32 model)."""
    max_tokens: int | None = None
    """The longest prompt; None: vLLM's default, the model's own limit."""


def served_model(role: Role, model: str, *, name: str | None = None) -> ServedModel:
    """What `amc serve ROLE MODEL` serves: see `value_model`, `policy_model`, `embeddings_model`."""
    finders: dict[Role, Callable[..., ServedModel]] = {
        "value": value_model,
        "policy": policy_model,
        "embeddings": embeddings_model,
    }
    return finders[role](model, name=name)


def value_model(checkpoint: str, *, name: str | None = None, cache: Path | None = None) -> ServedModel:
    """A value model that `amc train value` wrote, or a shipped one by its name.

    Args:
        checkpoint: a folder, or such as "crafting". A shipped model is merged into a folder of the cache first.
        name: what requests will call it; None: the folder's name, or the shipped model's.
        cache: where merged models are kept; None: `cache_folder()`.

    Raises:
        CheckpointError: it is not a merged value model.
    """
    folder = Path(checkpoint)
    shipped = _shipped(checkpoint)
    if shipped is not None and not (shipped / ADAPTER).is_dir():
        raise CheckpointError(f"the shipped model {checkpoint!r} has no value model; those that have: {_names()}")
    if shipped is not None:
        folder = _merged(shipped, cache or cache_folder())
    elif not folder.is_dir():
        raise CheckpointError(
            f"{checkpoint}: no such folder; expected one that `amc train value` wrote, or a shipped model ({_names()})"
        )
    _refuse_adapter(folder)
    described = ValueCheckpoint.load(folder)
    config = _config(folder)
    architectures, names = config.get("architectures"), config.get("id2label")
    architectures = architectures if isinstance(architectures, list) else []
    labels = len(names) if isinstance(names, dict) and names else 2
    if not any(str(one).endswith("ForSequenceClassification") for one in architectures) or labels != 1:
        raise CheckpointError(
            f"{folder}: expected a ...ForSequenceClassification with 1 label, as `amc train value` writes it; its "
            f"config.json says {', '.join(map(str, architectures)) or 'no architecture'} with {labels} labels"
        )
    limits = [one for one in (described.max_tokens, config.get("max_position_embeddings")) if type(one) is int]
    found = shipped.name if shipped is not None else folder.resolve().name
    return ServedModel("value", str(folder.resolve()), name or found, _number_type(config), min(limits, default=None))


def policy_model(model: str, *, name: str | None = None) -> ServedModel:
    """A generating model: a shipped one's name, a folder, or a name on a hub."""
    return _general("policy", model, name)


def embeddings_model(model: str, *, name: str | None = None) -> ServedModel:
    """An embedding model, or a generating one whose last hidden state is used: as `policy_model`."""
    return _general("embeddings", model, name)


def cache_folder() -> Path:
    """Where merged models and logs are kept: `amc-agents` in the user's cache folder (XDG)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amc-agents"


def _general(role: Role, model: str, name: str | None) -> ServedModel:
    shipped = _shipped(model)
    if shipped is not None:
        # It computes in float32 here too, whatever its file is rounded to.
        limit = _config(shipped)["max_position_embeddings"]
        return ServedModel(role, str(shipped), name or model, "float32", limit)
    folder = Path(model)
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise CheckpointError(f"{model}: no such folder")
        return ServedModel(role, model, name or model)
    _refuse_adapter(folder)
    return ServedModel(role, str(folder.resolve()), name or folder.resolve().name, _number_type(_config(folder)))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} does not exist: expected a transformers model's folder") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {excerpt(str(error))}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, got {quoted(config)}")
    return config


def _number_type(config: dict[str, Any]) -> str:
    written = config.get("dtype") or config.get("torch_dtype")
    return written if isinstance(written, str) and written in NUMBER_TYPES else "auto"


def _refuse_adapter(folder: Path) -> None:
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} holds a LoRA adapter alone: expected the merged model. `amc train value` writes that beside its "
            f"`adapter/`: name the folder that holds config.json and {FILE}"
        )


def _home() -> Path:
    return Path(amc_agents.models.embedded.__path__[0])


def _names() -> str:
    """The shipped models that have a value model."""
    return ", ".join(sorted(path.parent.name for path in _home().glob(f"*/{ADAPTER}")))


def _shipped(name: str) -> Path | None:
    """The folder of a shipped model; a folder of the user's of the same name goes first."""
    plain = "/" not in name and not Path(name).is_dir()
    folder = _home() / name
    return folder if plain and (folder / "config.json").is_file() else None


def _merged(shipped: Path, cache: Path) -> Path:
    """The shipped value model as one transformers folder, made once for these weights."""
    key = sha256(f"{weights_hash(shipped)} {weights_hash(shipped / ADAPTER)}".encode()).hexdigest()[:16]
    folder = cache / f"{shipped.name}-value-{key}"
    if (folder / FILE).is_file():
        return folder
    from amc_agents.critics.value.export import export_embedded_value

    try:
        return export_embedded_value(shipped, folder)
    except OSError:
        # Another process may have been faster.
        if not (folder / FILE).is_file():
            raise
    return folder
