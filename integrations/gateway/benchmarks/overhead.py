"""What the gateway adds to a request that it passes through: direct and through the gateway, in turns.

    python benchmarks/overhead.py [REQUESTS]

Upstream, gateway and client are three processes on this machine; the upstream answers at once. The client is the same
for both ways. Prints medians with 95% bootstrap intervals, the paired difference and the ratio; and then how long 200
requests take that are sent at the same time, direct and through the gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np

HERE = Path(__file__).resolve().parent
KEY = "amc-benchmark-key"
BODY = {"model": "small", "messages": [{"role": "user", "content": "hello " * 200}]}
CONCURRENT, CLIENTS = 200, 8
UPSTREAM = """
import json, sys
import uvicorn
ANSWER = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,
    "message": {"role": "assistant", "content": "word " * 100}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 300}}).encode()
async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": ANSWER})
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", lifespan="off")
"""
CONFIG = """
[upstreams.small]
base_url = "{upstream}/v1"
model = "m"
default_max_tokens = 100
[keys.benchmark]
env = "BENCHMARK_KEY"
requests_per_minute = 1000000
budget = {{ tokens = 1000000000 }}
[server]
port = {port}
ledger = "ledger.json"
"""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


@contextmanager
def process(*arguments: str, url: str) -> Iterator[None]:
    """A Python process that serves a URL."""
    paths = [str(HERE.parent), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "BENCHMARK_KEY": KEY}
    running = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                httpx.get(url)
                break
            except httpx.ConnectError:
                assert running.poll() is None, f"{arguments[:2]} ended"
                time.sleep(0.1)
        yield
    finally:
        running.terminate()
        running.wait()


def in_turns(urls: list[str], n: int) -> np.ndarray:
    """`[n, 2]` milliseconds of single requests, in random order within each pair."""
    rng, seconds = np.random.default_rng(0), np.zeros((n, 2))
    with httpx.Client(headers={"authorization": f"Bearer {KEY}"}) as http:
        for i in range(-50, n):
            for way in rng.permutation(2):
                start = time.perf_counter()
                http.post(f"{urls[way]}/v1/chat/completions", json=BODY).raise_for_status()
                if i >= 0:
                    seconds[i, way] = time.perf_counter() - start
    return 1000 * seconds


async def together(url: str) -> float:
    """Seconds for 200 requests that are sent at the same time."""
    async with AsyncExitStack() as stack:
        headers = {"authorization": f"Bearer {KEY}"}
        opened = [httpx.AsyncClient(headers=headers, timeout=120, verify=False) for _ in range(CLIENTS)]
        clients = [await stack.enter_async_context(client) for client in opened]
        start = time.perf_counter()
        sent = (clients[i % CLIENTS].post(f"{url}/v1/chat/completions", json=BODY) for i in range(CONCURRENT))
        for told in await asyncio.gather(*sent):
            told.raise_for_status()
        return time.perf_counter() - start


def interval(values: np.ndarray) -> str:
    """Median with its 95% bootstrap interval."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (2000, len(values))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return f"{np.median(values):.2f} [{low:.2f}, {high:.2f}] ms"


def main() -> None:
    """Measure and print."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.toml"
        path.write_text(CONFIG.format(upstream=urls[0], port=ports[1]))
        gateway = ("-m", "amc_agents_gateway", "serve", str(path))
        with process("-c", UPSTREAM, str(ports[0]), url=urls[0]), process(*gateway, url=f"{urls[1]}/health"):
            direct, through = in_turns(urls, n).T
            burst = [[asyncio.run(together(url)) for url in urls] for _ in range(5)]
    print(f"{n} pairs of requests, one at a time, with a key, a rate limit and a durable budget of tokens")
    print(f"direct               {interval(direct)}")
    print(f"through the gateway  {interval(through)}")
    print(f"difference           {interval(through - direct)}; ratio {np.median(through) / np.median(direct):.2f}")
    alone, behind = np.median(burst, axis=0)
    print(f"{CONCURRENT} at the same time: direct {alone:.2f} s, through the gateway {behind:.2f} s (medians of 5)")
    print(json.dumps({"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "python": sys.version.split()[0]}))


if __name__ == "__main__":
    main()
