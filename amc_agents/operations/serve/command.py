"""Build the command line and the environment of a vLLM server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amc_agents.errors import ConfigurationError
from amc_agents.operations.serve.installed import Vllm
from amc_agents.operations.serve.models import ServedModel
from amc_agents.quoting import quoted

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
