"""Real vLLM servers for tests, started by the library's own code.

AMC_VLLM_PYTHON is the path of a Python interpreter with vLLM (a CPU build is enough; this library is not needed there).
AMC_TEST_POLICY_URL and AMC_TEST_VALUE_URL name running servers to use instead, which must serve the shipped models
under the names "policy" and "value".
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from amc_agents.operations.serve import (
    Role,
    ServedModel,
    VllmServer,
    Where,
    chosen_port,
    command,
    environment,
    find_vllm,
    served_model,
)
from amc_agents.operations.serve.vllm_command import VARIABLE

START_SECONDS = 400
CONTEXT = 1024
QUICK = ("--enforce-eager",)
"""Without compilation, a server starts in half the time; its numbers are the same."""

# Finding vLLM takes seconds.
_vllm = cache(find_vllm)


def needs_vllm(test):
    """Mark a test that starts its own servers, to misconfigure or kill them: `make test-vllm-faults`."""
    return pytest.mark.faults(pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set")(test))


def new_server(
    model: str | Path | ServedModel,
    *,
    role: Role = "value",
    name: str | None = None,
    port: int = 0,
    extra: Sequence[str] = (),
    max_tokens: int = CONTEXT,
    api_key: str | None = None,
    log: Path | None = None,
) -> VllmServer:
    """Return a server that is not started yet; its default name is its role.

    `extra` flags come last, so that they can misconfigure the server: `--pooler-config '{"pooling_type": "MEAN"}'`.
    """
    served = model if isinstance(model, ServedModel) else served_model(role, str(model), name=name or role)
    served = replace(served, max_tokens=min(max_tokens, served.max_tokens or max_tokens))
    where = Where(port=chosen_port("127.0.0.1", port))
    vllm = _vllm()
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("VLLM_API_KEY", None)
    if api_key:
        variables["VLLM_API_KEY"] = api_key
    log = log or Path(tempfile.mkdtemp(prefix="amc-vllm-")) / "log"
    line = command(vllm, served, where, (*QUICK, *extra))
    return VllmServer(line, environment(vllm, variables), where.url, log, start_seconds=START_SECONDS)


@contextmanager
def vllm_server(model: str | Path | ServedModel, **settings) -> Iterator[VllmServer]:
    """Start a server with the settings of `new_server`, and stop all its processes at the end."""
    with new_server(model, **settings) as server:
        yield server


def kill(server: VllmServer) -> None:
    """Kill all processes of a server at once, like a failing machine."""
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
