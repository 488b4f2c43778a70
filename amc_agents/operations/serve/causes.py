"""Find out from a vLLM server's log why it died."""

from __future__ import annotations

import re
from pathlib import Path

_CAUSES = (
    (r"Address already in use", "The port is in use: choose another --port (0 selects a free port)."),
    (
        r"CUDA out of memory|OutOfMemoryError|Free memory on device",
        "The GPU has too little free memory: stop other programs on it, split the model (--tensor-parallel-size), or "
        "request less memory (--gpu-memory-utilization).",
    ),
    (
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "The cache does not fit: shorten prompts (--max-model-len), or give it more memory (--gpu-memory-utilization, "
        "VLLM_CPU_KVCACHE_SPACE in GiB).",
    ),
    (
        r"Decrease --kv-cache-memory-bytes",
        "VLLM_CPU_KVCACHE_SPACE (GiB) exceeds the free memory of this machine: set a smaller value.",
    ),
    (r"Unsupported CPU attention configuration", "vLLM's CPU build does not support the model's head size."),
)
"""(pattern in vLLM's log, advice)."""

_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): \S|^\S+: error: \S|^ +Value error, \S")
_PREFIX = re.compile(r"^(\(.*?pid=\d+\) )?((DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] )?")
_CONSEQUENCES = ("Engine core initialization failed", "Worker failed with error", "validation error for")


def likely_cause(log: str, status: int) -> str:
    """Describe the likely cause in one or two sentences.

    Args:
        log: the text of the whole log.
        status: exit status of the process; a negative status is a signal number.
    """
    for pattern, advice in _CAUSES:
        if re.search(pattern, log):
            return f"Likely cause: {_first_line(log, pattern)}. {advice}"
    # The first error: later errors are its consequences in other processes.
    for line in map(_plain, log.splitlines()):
        if _ERROR.search(line) and not any(text in line for text in _CONSEQUENCES):
            return f"Likely cause: {line.strip().rstrip('.')[:200]}."
    if status == -9:
        return "It was killed (SIGKILL), possibly because the system ran out of memory."
    return "Its log names no error."


def last_lines(log: Path, count: int) -> str:
    """Return the last non-empty lines of a log, without vLLM's prefix."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 200 * 200))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [plain for line in re.split(r"[\r\n]+", text) if (plain := _plain(line)).strip()]
    return "\n".join(line[:300] for line in lines[-count:])


def _plain(line: str) -> str:
    return _PREFIX.sub("", line)


def _first_line(log: str, pattern: str) -> str:
    match = next(line for line in log.splitlines() if re.search(pattern, line))
    return _plain(match).strip().rstrip(".")[:150]
