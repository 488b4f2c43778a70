"""LangGraph's own server, `langgraph dev`, without a browser and without the internet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

OFFLINE = {
    "LANGSMITH_TRACING": "false",
    "LANGGRAPH_CLI_NO_ANALYTICS": "1",
    # Whoever tries to leave this machine fails at once.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}


@contextmanager
def langgraph_dev(folder: Path, repository: Path, config: str = "langgraph.json") -> Iterator[httpx.Client]:
    """A client of `langgraph dev`, which is started in `folder` (it leaves files there) and ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | OFFLINE
    environment["PYTHONPATH"] = str(repository)
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", str(port)]
    command += ["--config", config]
    log = (folder / "server.log").open("w+")
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
        try:
            _wait_until_ok(client, process, log)
            yield client
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


def _wait_until_ok(client, process, log):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/ok").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    log.seek(0)
    raise AssertionError(f"langgraph dev did not start: {log.read()[-3000:]}")
