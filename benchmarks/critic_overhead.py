"""Client-side cost of a `vllm:` critic call: 64 trajectories of 2,000 tokens, and a server that answers at once.

    python benchmarks/critic_overhead.py [--runs 30]

The server is a separate process on a local socket that reads a request and answers from memory.
- cold: all texts are new.
- warm: each trajectory has one more step than in the previous call. CPU time is reported, too, because it depends less
  on other programs. Target: below 20 ms more than the server's time, measured as the same bytes over a plain socket.

Prints milliseconds as JSON. Exits with 1 if the target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from amc_agents.critics.render import PLAIN, Batch
from amc_agents.critics.saved import Golden
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.server.served import tokenizer_of
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.pooling import VLLMCritic, classify_body, ids_as_json
from amc_agents.types import Step, Task, Trajectory

N, TOKENS, STEP, TASK = 64, 2000, 80, 400
VOCABULARY = 128_000
TARGET_MS = 20.0
SCORE = 0.5

SERVER = """
import asyncio, json, sys

MODELS = json.dumps({"data": [{"id": "value", "root": "", "max_model_len": 4096}]}).encode()
ANSWERS = {}


def answer(n):
    data = [{"index": i, "label": "LABEL_0", "probs": [0.5], "num_classes": 1} for i in range(n)]
    return json.dumps({"object": "list", "model": "value", "data": data, "usage": {"prompt_tokens": n}}).encode()


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            lengths = [int(line[15:]) for line in head.split(b"\\r\\n") if line.startswith(b"content-length:")]
            request = await reader.readexactly(lengths[0]) if lengths else b""
            n = request.count(b"[") - 1
            body = (ANSWERS.get(n) or ANSWERS.setdefault(n, answer(n))) if request else MODELS
            head = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n"
            writer.write(head % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
"""


@contextmanager
def local_server() -> Iterator[int]:
    """Start the server in a new process, and yield its port."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def make_checkpoint(folder: Path) -> Path:
    """Write a value model's folder without weights, with a vocabulary of Llama's size and the server's golden score."""
    vocabulary = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    text = PLAIN.opening.format(instruction="w1 w2 w3") + PLAIN.marker
    ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    ValueCheckpoint(PLAIN, None, (), (Golden((text,), ids, SCORE),)).save(folder)
    return folder


def words(rng: np.random.Generator, n: int) -> str:
    """A text of `n` tokens, with ids of up to six digits."""
    return " ".join(f"w{number}" for number in rng.integers(VOCABULARY, size=n))


def longer(rng: np.random.Generator, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Extend each trajectory by a step."""
    # The format adds "Action:", "Observation:" and "Value:", two tokens each.
    return [trajectory.extended(Step(words(rng, 14), words(rng, STEP - 20))) for trajectory in trajectories]


def population(rng: np.random.Generator) -> list[Trajectory]:
    """Trajectories a step short of 2,000 tokens, without common texts."""
    trajectories = [Trajectory(Task(str(number), words(rng, TASK - 2))) for number in range(N)]
    for _ in range((TOKENS - TASK) // STEP - 1):
        trajectories = longer(rng, trajectories)
    return trajectories


async def milliseconds(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return 1e3 * (time.perf_counter() - start)


def bare_exchange(port: int, body: bytes) -> float:
    """Milliseconds for the same bytes over a plain socket, without the library: the server's time."""
    head = f"POST /classify HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head + body)
        answer = connection.recv(1 << 20)
        length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(answer) < length:
            answer += connection.recv(1 << 20)
    return 1e3 * (time.perf_counter() - start)


async def parts(critic: VLLMCritic, folder: Path, port: int, rng: np.random.Generator) -> dict[str, float]:
    """Milliseconds of the parts of a warm call."""
    known = population(rng)
    encoder = critic.checkpoint.encoder(tokenizer_of(folder))
    Batch.of(encoder, known)
    trajectories = longer(rng, known)
    start = time.perf_counter()
    for trajectory in trajectories:
        PLAIN.segments(trajectory)
    rendered = time.perf_counter()
    prompts = Batch.of(encoder, trajectories).prompts
    encoded = time.perf_counter()
    pieces = [[ids_as_json(segment)[1:-1] for segment in prompt] for prompt in prompts]
    written = time.perf_counter()
    body = classify_body("value", [b"[%b]" % b",".join(segments) for segments in pieces])
    joined = time.perf_counter()
    server = ModelServer(f"http://127.0.0.1:{port}")
    http = await milliseconds(lambda: server.post("/classify", [body]))
    assert sum(len(segment) for segment in prompts[0]) == TOKENS
    return {
        "render": 1e3 * (rendered - start),
        "render_tokenize_distinct": 1e3 * (encoded - rendered),
        "json_of_all_ids": 1e3 * (written - encoded),
        "json_joined_of_known_segments": 1e3 * (joined - written),
        "http": http,
        "bare_socket": bare_exchange(port, body),
        "body_bytes": float(len(body)),
    }


async def measure(runs: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name, local_server() as port:
        folder = make_checkpoint(Path(name))
        cold, warm, processor = [], [], []
        critic = VLLMCritic(f"http://127.0.0.1:{port}", checkpoint=folder)
        await critic.connect()
        for _ in range(runs):
            known = population(rng)
            cold.append(await milliseconds(lambda: critic.values(known)))  # noqa: B023
            new = longer(rng, known)
            used = time.process_time()
            warm.append(await milliseconds(lambda: critic.values(new)))  # noqa: B023
            processor.append(1e3 * (time.process_time() - used))
        rows = [await parts(critic, folder, port, rng) for _ in range(max(5, runs // 3))]
    split = {part: float(np.median([row[part] for row in rows])) for part in rows[0]}
    times = {
        name: {"median": float(np.median(samples)), "min": min(samples)}
        for name, samples in (("cold", cold), ("warm", warm), ("warm_processor", processor))
    }
    return {
        "trajectories": N,
        "tokens_each": TOKENS,
        "runs": runs,
        **times,
        "parts_of_a_warm_call": split,
        "overhead": times["warm"]["median"] - split["bare_socket"],
        "target": TARGET_MS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    result = asyncio.run(measure(parser.parse_args().runs))
    print(json.dumps(result, indent=2))
    return int(result["overhead"] > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
