"""Value models on vLLM on one GPU: are the values of `amc serve` correct there, and how fast are they?

    python benchmarks/gpu_serving.py --out gpu_serving.json [--seconds 300] [--sizes 1.5b,8b,0.5b]

All servers are started at once by `amc serve`, side by side on one GPU, and stay there; only one at a time is asked.
They have a fixed amount of cache each (`--kv-cache-memory-bytes`), so that they do not measure each other's memory.

- It works: the shipped value model, served as `amc serve value crafting` chooses, against the same model in numpy in
  this process: golden prompts, handshake, 64 states, `amc doctor`. Also without compilation, and without compilation
  and with Triton's matrix products in full float32 (`TRITON_F32_DEFAULT=ieee`; its default is TF32). Then the shipped
  policy: `amc doctor`, and one run of AMC in which both models are served.
- Speed: value models of real size in bfloat16, with random weights (`--load-format dummy`), without compilation, and a
  tokenizer of 128,000 words. Their golden scores are read from the server itself, so that the handshake is no check.
    - episode: N = 15 trajectories that grow from 1,000 to 5,000 tokens in steps of 200 and are weighed after each step,
      as the critic does it, and resampled with equal weights. Seconds per weighing; tokens that the server computed,
      next to `episode_computed_tokens`: those of the simulator of `block_cache.py`, with blocks of 16 and of 1 token.
    - requests: seconds of one request of prompts that are in no cache, by its tokens, and the two numbers of a server
      of docs/scale.md fitted to them.
    - tasks: n tasks at once, each of 15 trajectories that grow from 1,000 to 1,800 tokens and are weighed four times.

Writes JSON, again after each figure, so that an interruption loses nothing. On a machine without vLLM on a GPU it does
nothing; `--allow-cpu --sizes tiny` tries it there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from block_cache import BlockCache
from critic_overhead import VOCABULARY, words
from tokenizers import Tokenizer, models, pre_tokenizers

from amc_agents import AtSteps, Never, amc, parse_critic, text_agent
from amc_agents.critics.render import PLAIN, Batch
from amc_agents.critics.server.folder import tokenizer_of
from amc_agents.critics.server.golden import Golden
from amc_agents.critics.server.http import ModelServer
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.pooling import CONTROL_TOKENS, VLLMCritic, classify_body, ids_as_json
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.errors import AmcError
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.serve import find_vllm, served_model
from amc_agents.types import Step, Task, Trajectory

N, FIRST, STEP, STEPS, TASK_STEPS = 15, 1000, 200, 20, 4
EPISODES = 3
BLOCK = 16
"""vLLM's block size on a GPU, which `amc serve` keeps."""
MAX_TOKENS = 6144
TOLERANCE = 2e-2
"""Of golden scores, for a server in bfloat16."""
STATES = 64
TASKS_AT_ONCE = (8, 32)
REQUESTS = ((1, 16), (1, 256), (1, 1024), (2, 1024), (4, 1024), (8, 1024), (16, 4096))
"""(prompts, tokens of each)."""
GIB = 1 << 30


def shape(family: str, hidden: int, inner: int, layers: int, heads: int, kv: int, words: int) -> dict[str, Any]:
    rope, epsilon = (5e5, 1e-5) if family == "Llama" else (1e6, 1e-6)
    return {
        "architectures": [f"{family}ForSequenceClassification"], "model_type": family.lower(), "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": hidden // heads, "vocab_size": words, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": epsilon, "tie_word_embeddings": False, "dtype": "bfloat16",
        "rope_parameters": {"rope_theta": rope, "rope_type": "default"}, "pad_token_id": 0,
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
    }  # fmt: skip


SIZES: dict[str, tuple[dict[str, Any], float]] = {
    "tiny": (shape("Llama", 128, 384, 4, 4, 2, 128256), 1),
    "0.5b": (shape("Qwen2", 896, 4864, 24, 14, 2, 151936), 6),
    "1.5b": (shape("Qwen2", 1536, 8960, 28, 12, 2, 151936), 12),
    "8b": (shape("Llama", 4096, 14336, 32, 32, 8, 128256), 20),
}
"""Name -> (config of Qwen2.5 or Llama 3.1, GiB of cache)."""


class Report:
    """The figures so far, in a file."""

    def __init__(self, out: Path | None) -> None:
        self._out, self.begun, self.values = out, time.monotonic(), {}  # type: ignore[var-annotated]

    def add(self, path: str, value: Any) -> None:
        """Set a value, by keys with slashes between them, and write the file."""
        *parents, last = path.split("/")
        place = self.values
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
        seconds = round(time.monotonic() - self.begun, 1)
        self.values["seconds"] = seconds
        print(f"{seconds:6.1f} s  {path}: {json.dumps(value)[:200]}", flush=True)
        if self._out is not None:
            partial = self._out.with_name(self._out.name + ".partial")
            partial.write_text(json.dumps(self.values, indent=1) + "\n")
            partial.replace(self._out)


@dataclass
class Served:
    """A server of `amc serve`, started."""

    name: str
    arguments: list[str]
    port: int
    folder: Path
    """Of its logs."""
    flags: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        code = "from amc_agents.cli import main; main()"
        line = [sys.executable, "-c", code, "serve", *self.arguments, "--port", str(self.port), "--log", str(self.log)]
        settings = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1", **self.variables}
        self.begun, self.ready_after = time.monotonic(), 0.0
        with self._printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [*line, "--", *self.flags], env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=printed,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def _printed(self) -> Path:
        return self.folder / f"{self.name}.printed"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def printed(self) -> str:
        return self._printed.read_text(errors="replace")

    def ready(self) -> bool:
        """True once `amc serve` has said so."""
        if not self.ready_after and "Ctrl-C stops it." in self.printed:
            self.ready_after = time.monotonic() - self.begun
        return bool(self.ready_after)

    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def critic(self) -> str:
        """The critic string that `amc serve` printed."""
        return re.findall(r"vllm:http\S+", self.printed)[0]

    def said(self) -> list[str]:
        """Lines of its log that tell what vLLM has chosen."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = (line.split("] ", 1)[-1].strip()[:200] for line in text.splitlines() if _TELLING.search(line))
        return list(dict.fromkeys(lines))[:20]

    def stop(self) -> None:
        """Ask it to stop; a second time, `amc serve` kills vLLM."""
        if not self.ended():
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> int:
        """Wait for its end after `stop`, and return its exit status."""
        for seconds in (20, 5):
            try:
                return self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.stop()
        self.process.kill()
        return self.process.wait()


_TELLING = re.compile(
    r"Using \S+ (attention )?backend|FlashAttention version|KV cache size|Maximum concurrency|Model loading took|"
    r"max_num_batched_tokens|Resolved |torch\.compile took|Initializing a V1 LLM engine|Casting|Downcasting|"
    r"init engine .* took"
)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start(sizes: Sequence[str], folder: Path, device: str) -> dict[str, Served]:
    """Start all servers."""

    def flags(gib: float, *further: str) -> list[str]:
        # vLLM checks that its share of the memory is free, and then takes what the second flag says.
        memory = ["--gpu-memory-utilization", "0.02", "--kv-cache-memory-bytes", str(int(gib * GIB))]
        return [*(memory if device == "cuda" else []), *further]

    eager = "--enforce-eager"
    small: list[tuple[str, list[str], list[str], dict[str, str]]] = [
        ("value", ["value", "crafting"], flags(0.5), {}),
        ("value-eager", ["value", "crafting"], flags(0.5, eager), {}),
        ("value-ieee", ["value", "crafting"], flags(0.5, eager), {"TRITON_F32_DEFAULT": "ieee"}),
        ("policy", ["policy", "crafting"], flags(0.5, eager), {}),
    ]
    large = [
        (size, ["value", str(make_folder(size, folder))], flags(SIZES[size][1], eager, "--load-format", "dummy"), {})
        for size in sizes
    ]
    started = {}
    ports = free_ports(len(small) + len(large))
    # The largest first, because they take longest.
    for port, (name, arguments, further, variables) in zip(ports, [*large[::-1], *small], strict=True):
        started[name] = Served(name, arguments, port, folder, further, variables)
        time.sleep(0.3)
    return started


def make_folder(size: str, folder: Path) -> Path:
    """Write a value model's folder without weights; its golden score is still unknown."""
    home = folder / f"value-{size}"
    home.mkdir()
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(home / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "model_max_length": MAX_TOKENS}
    (home / "tokenizer_config.json").write_text(json.dumps(settings))
    (home / "config.json").write_text(json.dumps(SIZES[size][0], indent=1))
    checkpoint_with(home, 0.0).save(home)
    return home


def checkpoint_with(home: Path, score: float) -> ValueCheckpoint:
    text = PLAIN.opening.format(instruction="w1 w2 w3") + PLAIN.marker
    ids = tuple(Tokenizer.from_file(str(home / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    return ValueCheckpoint(PLAIN, MAX_TOKENS, (), (Golden((text,), ids, score),), tolerance=TOLERANCE)


async def until_ready(started: dict[str, Served], report: Report, seconds: float) -> dict[str, Served]:
    """Wait for all servers, and return those that are ready; the others are stopped."""
    end = time.monotonic() + seconds
    waiting = set(started)
    while waiting and time.monotonic() < end:
        for name in sorted(waiting):
            server = started[name]
            if server.ready() or server.ended():
                waiting.discard(name)
                note: dict[str, Any] = {"seconds": round(server.ready_after, 1), "vllm": server.said()}
                if not server.ready_after:
                    note["failed"] = server.printed[-2500:]
                report.add(f"servers/{name}", note)
        await asyncio.sleep(0.2)
    for name in waiting:
        server = started[name]
        report.add(f"servers/{name}", {"failed": f"not ready after {seconds:.0f} s", "vllm": server.said()})
        server.stop()
    return {name: server for name, server in started.items() if server.ready_after and not server.ended()}


async def raw_scores(url: str, name: str, prompts: Sequence[Sequence[int]]) -> list[float]:
    """Scores of one request, as the critic sends it."""
    (answer,) = await ModelServer(url, timeout=120).post(
        "/classify", [classify_body(name, list(map(ids_as_json, prompts)))]
    )
    return [each["probs"][0] for each in sorted(answer["data"], key=lambda each: each["index"])]


def real_states() -> list[Trajectory]:
    """States of the shipped policy, each up to a random step."""
    agent, rng = text_agent(EmbeddedChatModel(temperature=1.0)), np.random.default_rng(0)
    whole: list[Trajectory] = []
    for task in generate_tasks(5, "train", first_seed=100, optimal_steps=(4, 12)):

        def environment(_: Any, task: Task = task) -> tuple[CraftingWorld, Task]:
            return CraftingWorld(), task

        graph = amc(agent, n_particles=N, resample=Never(), horizon=20, seed=1, environment=environment)
        whole += graph.run({"messages": [("user", task.instruction)]}).population.trajectories
    return [each.prefix(int(rng.integers(0, len(each.steps) + 1))) for each in whole][:STATES]


async def compare(server: Served, states: Sequence[Trajectory], expected: np.ndarray, report: Report) -> None:
    """Compare a server of the shipped value model with numpy."""
    where = f"crafting/{server.name}"
    checkpoint = ValueCheckpoint.load(model_folder("crafting") / "value")
    golden = np.array([*(each.score for each in checkpoint.golden), *checkpoint.probe_scores])
    scores = np.array(await raw_scores(server.url, "crafting", checkpoint.handshake_rows()))
    report.add(f"{where}/golden_max_abs_difference", float(np.abs(scores - golden).max()))
    report.add(f"{where}/tolerance", checkpoint.tolerance)
    critic: Any = parse_critic(server.critic)
    try:
        await critic.connect()
        report.add(f"{where}/handshake", "passed")
    except AmcError as error:
        report.add(f"{where}/handshake", str(error))
    # So that the values are known even if the handshake fails.
    tolerant: Any = parse_critic(f"{server.critic}&tolerance=10")
    await tolerant.values(states[:1])
    begun = time.perf_counter()
    values = await tolerant.values(states)
    report.add(f"{where}/milliseconds_of_{len(states)}_values", round(1e3 * (time.perf_counter() - begun), 2))
    report.add(f"{where}/max_abs_difference", float(np.abs(values - expected).max()))
    report.add(f"{where}/spread_of_values", float(np.ptp(expected)))
    alone = np.concatenate([await tolerant.values([state]) for state in states[:16]])
    report.add(f"{where}/max_abs_difference_alone_or_together", float(np.abs(values[:16] - alone).max()))


async def doctor(report: Report, where: str, *arguments: str) -> None:
    """Run `amc doctor` and note the state of each check."""
    code = "from amc_agents.cli import main; main()"
    line = [sys.executable, "-c", code, "doctor", *arguments, "--json"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*line, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    try:
        answer = json.loads(out)
        checks = {
            each["name"]: each["state"] if each["state"] == "ok" else f"{each['state']}: {each['detail']}"[:400]
            for each in answer["checks"]
        }
        report.add(where, {"status": process.returncode, **checks})
    except (ValueError, KeyError):
        report.add(where, {"status": process.returncode, "printed": (out + err).decode()[-1500:]})


async def whole_run(policy: Served, value: Served, report: Report) -> None:
    """One run of AMC in which policy and value model are served."""
    from langchain_openai import ChatOpenAI

    task = next(iter(generate_tasks(1, "train", first_seed=7, optimal_steps=(6, 8))))
    model = ChatOpenAI(
        base_url=f"{policy.url}/v1", model="crafting", api_key="none", temperature=0.7, max_completion_tokens=60
    )  # type: ignore[call-arg]
    graph = amc(
        text_agent(model), f"{value.critic}&tolerance=10", n_particles=N, resample=AtSteps(4, 8), beta=0.1, horizon=20,
        seed=1, environment=lambda _: (CraftingWorld(), task),
    )  # fmt: skip
    begun = time.perf_counter()
    run = await graph.arun({"messages": [("user", task.instruction)]})
    figures = {
        "seconds": round(time.perf_counter() - begun, 2), "value_server": value.name, "best_return": run.best.return_,
        "policy_calls": run.usage["policy"].calls, "critic_calls": run.usage["critic"].calls,
        "resampled": sum(point.ancestors is not None for point in run.history),
    }  # fmt: skip
    report.add("crafting/amc_run", figures)


async def counted(url: str) -> dict[str, int]:
    """Prompt tokens of a server so far, those from its cache, and its preemptions."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    names = {
        "prompt": "vllm:prompt_tokens", "cached": "vllm:prompt_tokens_cached", "queried": "vllm:prefix_cache_queries",
        "hit": "vllm:prefix_cache_hits", "preemptions": "vllm:num_preemptions",
    }  # fmt: skip
    return {
        key: int(sum(float(value) for value in re.findall(rf"^{name}_total(?:{{[^}}]*}})? (\S+)$", text, re.M)))
        for key, name in names.items()
    }


class Counter:
    """Tokens between two moments; the server counts a little after it has answered."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> dict[str, int]:
        self._before, self._between = await counted(self._url), {}  # type: ignore[var-annotated]
        return self._between

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.2)
        after = await counted(self._url)
        self._between.update({key: after[key] - self._before[key] for key in after})


def longer(rng: np.random.Generator, trajectory: Trajectory) -> Trajectory:
    """Extend a trajectory by a step of `STEP` tokens: "Action:", "Observation:" and "Value:" are two tokens each."""
    return trajectory.extended(Step(words(rng, 14), words(rng, STEP - 20)))


@cache
def populations(seed: int, steps: int) -> list[list[Trajectory]]:
    """The trajectories at each weighing of a task, resampled with equal weights after each."""
    rng = np.random.default_rng(seed)
    task = Task(str(seed), words(rng, FIRST - 2))
    current, weighed = [Trajectory(task)] * N, []
    for _ in range(steps):
        weighed.append([longer(rng, each) for each in current])
        current = [weighed[-1][parent] for parent in rng.integers(N, size=N)]
    return weighed


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds: the median, the 95th percentile, the least and the most."""
    points = {"p50": 50, "p95": 95, "least": 0, "most": 100}
    return {name: round(1e3 * float(np.percentile(seconds, point)), 2) for name, point in points.items()}


def shares(between: dict[str, int]) -> dict[str, Any]:
    computed = between["prompt"] - between["cached"]
    share = round(between["cached"] / max(1, between["prompt"]), 4)
    return {"prompt_tokens": between["prompt"], "computed_tokens": computed, "cached_share": share, "counted": between}


def simulated(encoder: Any) -> dict[str, int]:
    """Computed tokens of the episodes by the simulator: with vLLM's blocks, and with blocks of one token (`least`)."""
    episodes = [populations(seed, STEPS) for seed in range(EPISODES)]
    caches = {"simulated": BlockCache(1 << 40, BLOCK), "least": BlockCache(1 << 40, 1)}
    calls = [
        [[token for part in prompt for token in part] for prompt in Batch.of(encoder, call).prompts]
        for episode in episodes
        for call in episode
    ]
    totals = {name: sum(cache.compute(row) for call in calls for row in call) for name, cache in caches.items()}
    control = CONTROL_TOKENS * len(calls)
    scores = sum(map(len, calls))
    return {
        **{name: total + control for name, total in totals.items()},
        "least_and_a_block_per_score": totals["least"] + control + BLOCK * scores, "scores": scores,
    }  # fmt: skip


async def measure_episodes(critic: VLLMCritic, url: str, report: Report, where: str) -> None:
    episodes = [populations(seed, STEPS) for seed in range(EPISODES)]
    seconds: list[list[float]] = []
    async with Counter(url) as between:
        for episode in episodes:
            seconds.append([await timed(critic.values(call)) for call in episode])
    flat = [each for row in seconds for each in row]
    figures = {
        "weighing_ms": spread(flat), "values_per_s": round(N * len(flat) / sum(flat), 1),
        "ms_by_step": [round(1e3 * float(np.median(step)), 2) for step in zip(*seconds, strict=True)],
        **shares(between),
    }  # fmt: skip
    report.add(where, figures)


def prepare(home: Path, report: Report) -> None:
    """Make the texts, and simulate the episodes, while the servers start."""
    for n in TASKS_AT_ONCE:
        for number in range(n):
            populations(10_000 * n + number, TASK_STEPS)
    encoder = ValueCheckpoint.load(home).encoder(tokenizer_of(home))
    report.add("episode_computed_tokens", simulated(encoder))


async def timed(work: Any) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def measure_requests(url: str, name: str, parameters: float, report: Report, where: str) -> None:
    """Seconds of one request of random prompts, and the two numbers of the server."""
    rng = np.random.default_rng(7)
    rows = []
    for prompts, tokens in REQUESTS:
        runs = 3 if prompts * tokens <= 8192 else 2
        seconds = [
            await timed(raw_scores(url, name, rng.integers(1, VOCABULARY, (prompts, tokens)).tolist()))
            for _ in range(runs)
        ]
        total = prompts * tokens
        median = float(np.median(seconds))
        rows.append({
            "prompts": prompts, "tokens": total, "ms": round(1e3 * median, 2), "tokens_per_s": round(total / median),
            "model_tflops": round(2 * parameters * total / median / 1e12, 1),
        })  # fmt: skip
        report.add(where, rows)
    known = [(row["tokens"], row["ms"] / 1e3) for row in rows if row["tokens"] <= 8192]
    per_token, overhead = np.polyfit([tokens for tokens, _ in known], [second for _, second in known], 1)
    errors = {tokens: round((overhead + per_token * tokens) / second - 1, 3) for tokens, second in known}
    figures = {
        "overhead_ms": round(1e3 * overhead, 2), "tokens_per_s": round(1 / per_token), "relative_errors": errors,
    }  # fmt: skip
    report.add(f"{where}_fit", figures)


async def measure_tasks(critic: VLLMCritic, url: str, n: int, report: Report, where: str) -> None:
    tasks = [populations(10_000 * n + number, TASK_STEPS) for number in range(n)]

    async def play(calls: Sequence[list[Trajectory]]) -> list[float]:
        return [await timed(critic.values(call)) for call in calls]

    async with Counter(url) as between:
        begun = time.perf_counter()
        seconds = [each for row in await asyncio.gather(*map(play, tasks)) for each in row]
        wall = time.perf_counter() - begun
    values = n * N * TASK_STEPS
    figures = {
        "tasks": n, "values": values, "seconds": round(wall, 3), "values_per_s": round(values / wall, 1),
        "weighing_ms": spread(seconds), **shares(between),
    }  # fmt: skip
    figures["computed_tokens_per_s"] = round(figures["computed_tokens"] / wall)
    report.add(where, figures)


def parameters_of(config: dict[str, Any]) -> int:
    """Parameters that are multiplied with every token: without embeddings and head."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return config["num_hidden_layers"] * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner)


async def measure_size(server: Served, size: str, home: Path, report: Report, left: Any) -> None:
    config, gib = SIZES[size]
    where, name = f"sizes/{size}", home.name
    parameters = parameters_of(config)
    report.add(f"{where}/model", {
        "parameters_without_embeddings": parameters, "cache_gib": gib,
        **{key: config[key] for key in ("model_type", "hidden_size", "num_hidden_layers", "head_dim", "dtype")},
    })  # fmt: skip
    rng = np.random.default_rng(3)
    for tokens in (64, 4096):  # The first requests compile Triton's kernels, and let cuBLAS choose.
        await raw_scores(server.url, name, rng.integers(1, VOCABULARY, (4, tokens)).tolist())
    unknown = checkpoint_with(home, 0.0)
    (score,) = await raw_scores(server.url, name, unknown.handshake_rows())
    checkpoint = checkpoint_with(home, score)
    checkpoint.save(home)
    report.add(f"{where}/golden_score_of_this_server", score)
    critic = VLLMCritic(server.url, checkpoint=home, timeout=120)
    await critic.connect()
    await measure_episodes(critic, server.url, report, f"{where}/episode")
    if left() > 20:
        await measure_requests(server.url, name, parameters, report, f"{where}/requests")
    bytes_per_token = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    for n in TASKS_AT_ONCE:
        needed = n * (FIRST + N * STEP * TASK_STEPS) * bytes_per_token / GIB
        if needed > gib:
            report.add(f"{where}/tasks_{n}", f"skipped: needs up to {needed:.0f} GiB of cache")
        elif left() > 20:
            await measure_tasks(critic, server.url, n, report, f"{where}/tasks_{n}")


def versions(python: str) -> dict[str, Any]:
    code = (
        "import json, platform; from importlib.metadata import version\n"
        "found = {'python': platform.python_version()}\n"
        "for name in ('vllm', 'torch', 'triton', 'transformers', 'numpy'):\n"
        "    try: found[name] = version(name)\n"
        "    except Exception: pass\n"
        "print(json.dumps(found))"
    )
    found: dict[str, Any] = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    return found | {"cpus": os.cpu_count(), "cards": asked_of_card("name,driver_version,memory.total")}


def asked_of_card(fields: str) -> list[str]:
    line = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


async def measure(arguments: argparse.Namespace, folder: Path, report: Report) -> None:
    end = report.begun + arguments.seconds

    def left() -> float:
        return end - time.monotonic()

    sizes = [size for size in arguments.sizes.split(",") if size]
    vllm = find_vllm()
    if vllm.device != "cuda" and not arguments.allow_cpu:
        print(f"skipped: vLLM runs on {vllm.device or 'no device'} here, not on a GPU")
        return
    report.add("command", " ".join(sys.argv))
    report.add("software", versions(vllm.python))
    started = start(sizes, folder, vllm.device)
    try:
        waiting = asyncio.create_task(until_ready(started, report, min(arguments.start_seconds, left())))
        report.add("crafting/number_type", served_model("value", "crafting").dtype)
        states = await asyncio.to_thread(real_states)
        expected = await parse_critic("embedded:crafting").values(states)
        if sizes:
            await asyncio.to_thread(prepare, folder / f"value-{sizes[0]}", report)
        ready = await waiting
        report.add("software/memory_used", asked_of_card("memory.used"))
        steps: list[tuple[str, Any]] = []
        values = [ready[name] for name in ("value", "value-eager", "value-ieee") if name in ready]
        steps += [(f"crafting/{each.name}", compare(each, states, expected, report)) for each in values]
        if values:
            steps.append(("doctor", doctor(report, "crafting/doctor_critic", "--critic", values[0].critic)))
        homes = {size: folder / f"value-{size}" for size in sizes if size in ready}
        steps += [
            (f"sizes/{size}", measure_size(ready[size], size, home, report, left)) for size, home in homes.items()
        ]
        if "policy" in ready:
            flags = ("--policy-url", ready["policy"].url, "--policy-model", "crafting")
            steps.append(("doctor", doctor(report, "crafting/doctor_policy", *flags)))
        if "policy" in ready and values:
            steps.append(("run", whole_run(ready["policy"], values[-1], report)))
        await in_turn(steps, report, left)
    finally:
        for server in started.values():
            if server.ready_after:
                server.stop()
        report.add("exit_statuses", {name: server.close() for name, server in started.items()})


async def in_turn(steps: Sequence[tuple[str, Any]], report: Report, left: Any) -> None:
    """Run the steps while there is time; a failed step does not stop the others."""
    for name, work in steps:
        if left() < 8:
            work.close()
            report.add(f"problems/{name}", "skipped: no time left")
            continue
        try:
            await asyncio.wait_for(work, max(5.0, left()))
        except Exception as error:
            report.add(f"problems/{name}", f"{type(error).__name__}: {error}"[:1500])


def logs_folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("--sizes", default="1.5b,8b,0.5b", help=f"of {', '.join(SIZES)}; the most important first")
    parser.add_argument("--seconds", type=float, default=300, help="time for everything but the servers' stop")
    parser.add_argument("--start-seconds", type=float, default=150, help="time for the servers' start")
    parser.add_argument(
        "--logs", type=Path, help="folder for the servers' logs and models; default: a temporary folder"
    )
    parser.add_argument("--allow-cpu", action="store_true")
    arguments = parser.parse_args()
    report = Report(arguments.out)
    for folder in logs_folder(arguments.logs):
        try:
            asyncio.run(measure(arguments, folder, report))
        except AmcError as error:
            print(f"skipped: {error}")


if __name__ == "__main__":
    main()
