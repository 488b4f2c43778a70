"""Real vLLM servers for tests, started by the library's own code.

AMC_VLLM_PYTHON names the python that has vLLM (a CPU build will do; it need not have this library). Servers that run
already, such as a developer's, are taken instead where AMC_TEST_POLICY_URL and AMC_TEST_VALUE_URL name them: the
shipped models under the names "policy" and "value".
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

from amc_agents.serve import (
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
from amc_agents.serve.installed import VARIABLE

START_SECONDS = 400
CONTEXT = 1024
QUICK = ("--enforce-eager",)
"""Without compilation a server is ready in half the time; its numbers are the same."""

# Asking takes seconds.
_vllm = cache(find_vllm)


def needs_vllm(test):
    """Marks a test that starts servers of its own, wrong ones or ones to be killed: `make test-vllm-faults`."""
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
    """A server that is not started yet, called by its role if nothing is said.

    `extra` goes last, so that a fault may be given there: `--pooler-config '{"pooling_type": "MEAN"}'`.
    """
    found = model if isinstance(model, ServedModel) else served_model(role, str(model), name=name or role)
    found = replace(found, max_tokens=min(max_tokens, found.max_tokens or max_tokens))
    where = Where(port=chosen_port("127.0.0.1", port))
    vllm = _vllm()
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("VLLM_API_KEY", None)
    if api_key:
        variables["VLLM_API_KEY"] = api_key
    log = log or Path(tempfile.mkdtemp(prefix="amc-vllm-")) / "log"
    line = command(vllm, found, where, (*QUICK, *extra))
    return VllmServer(line, environment(vllm, variables), where.url, log, start_seconds=START_SECONDS)


@contextmanager
def vllm_server(model: str | Path | ServedModel, **settings) -> Iterator[VllmServer]:
    """A healthy server (`.url`, `.pid`, `kill`), gone with all its processes at the end; settings of `new_server`."""
    with new_server(model, **settings) as server:
        yield server


def kill(server: VllmServer) -> None:
    """Kill all processes of a server at once, as a machine that fails does."""
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
