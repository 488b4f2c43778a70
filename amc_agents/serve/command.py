"""The command line of a vLLM server, and its environment: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amc_agents.errors import ConfigurationError
from amc_agents.serve.installed import Vllm
from amc_agents.serve.models import ServedModel

CPU_BLOCK = 32
"""Tokens of a cache block on the CPU, whose default (128) would compute most of a growing prompt again."""
CPU_CACHE_GIB = 4


@dataclass(frozen=True)
class Where:
    """Where a server listens, and what it may use."""

    host: str = "127.0.0.1"
    port: int = 8000
    tensor_parallel_size: int = 1
    """GPUs over which one copy of the model is split."""
    data_parallel_size: int = 1
    """Copies of the model."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory; None: vLLM's default."""

    @property
    def url(self) -> str:
        """How this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def command(vllm: Vllm, model: ServedModel, where: Where, extra: Sequence[str] = ()) -> list[str]:
    """What to run.

    Args:
        vllm: the python that has vLLM, and its device.
        model: what to serve.
        where: address, GPUs.
        extra: further flags of vLLM; they win over the ones chosen here.

    Raises:
        ConfigurationError: a flag that is an option of `amc serve`, or that would show a key to every user of the
            machine.
    """
    _check(extra)
    # Not the `vllm` command: that of the CPU build asks for a package of another name than its own.
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
    """The variables to run it with: those given, a cache size on the CPU; a key stays in `VLLM_API_KEY`."""
    chosen = {"VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB)} if vllm.device == "cpu" else {}
    return chosen | dict(variables)


def _check(extra: Sequence[str]) -> None:
    if extra and not extra[0].startswith("-"):
        raise ConfigurationError(f"did not expect {extra[0]!r}: further flags of vLLM go after `--`")
    for flag in extra:
        plain = flag.split("=", 1)[0].replace("_", "-")
        if plain == "--api-key":
            raise ConfigurationError(
                "--api-key would show the key to everybody who lists processes: set VLLM_API_KEY instead"
            )
        if plain in _OWN:
            raise ConfigurationError(f"{plain} is an option of `amc serve`: give it before `--`")


_OWN = ("--model", "--served-model-name", "--host", "--port", "--tensor-parallel-size", "--data-parallel-size")

_PREFIXES = ("--enable-prefix-caching", "--enable-prompt-tokens-details")

_ROLE = {
    # The value is read at the last token, whatever a model's own default is.
    "value": ("--runner", "pooling", "--pooler-config", '{"pooling_type": "LAST"}', *_PREFIXES),
    "policy": ("--runner", "generate", *_PREFIXES),
    # Whether prefixes can be kept depends on the model's pooling, which vLLM knows.
    "embeddings": ("--runner", "pooling", "--convert", "embed"),
}
