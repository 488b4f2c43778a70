"""Why a vLLM server died, as far as its log says."""

from __future__ import annotations

import re
from pathlib import Path

_CAUSES = (
    (r"Address already in use", "The port is in use: choose another --port (0: a free one)."),
    (
        r"CUDA out of memory|OutOfMemoryError|Free memory on device",
        "The GPU has too little free memory: end what else runs on it, split the model (--tensor-parallel-size), or "
        "ask for less (--gpu-memory-utilization).",
    ),
    (
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "The cache does not fit: shorten prompts (--max-model-len), or give it more (--gpu-memory-utilization, "
        "VLLM_CPU_KVCACHE_SPACE in GiB).",
    ),
    (r"Decrease --kv-cache-memory-bytes", "VLLM_CPU_KVCACHE_SPACE (GiB) is more memory than this machine has free."),
    (r"Unsupported CPU attention configuration", "vLLM's CPU build does not know the model's size of a head."),
)
"""What to do, by a text of vLLM."""

_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): \S|^\S+: error: \S|^ +Value error, \S")
_PREFIX = re.compile(r"^(\(.*?pid=\d+\) )?((DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] )?")
_SECOND_HAND = ("Engine core initialization failed", "Worker failed with error", "validation error for")


def likely_cause(log: str, status: int) -> str:
    """A sentence or two, from what the log says.

    Args:
        log: all of it.
        status: the process's, negative for a signal's number.
    """
    for pattern, advice in _CAUSES:
        if re.search(pattern, log):
            return f"Likely cause: {_first_line(log, pattern)}. {advice}"
    # The first one: what follows are those who noticed.
    for line in map(_plain, log.splitlines()):
        if _ERROR.search(line) and not any(one in line for one in _SECOND_HAND):
            return f"Likely cause: {line.strip().rstrip('.')[:500]}."
    if status == -9:
        return "It was killed (SIGKILL), which is also what a system does that runs out of memory."
    return "Its log names no error."


def last_lines(log: Path, count: int) -> str:
    """The last lines of a log that say something, without vLLM's prefix."""
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
    found = next(line for line in log.splitlines() if re.search(pattern, line))
    return _plain(found).strip().rstrip(".")[:300]
