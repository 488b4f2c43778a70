"""The shipped policy and value model on a real vLLM server, equal to what they give here.

AMC_VLLM_PYTHON=/path/to/python pytest tests/service -m service

That python has vLLM (a CPU build will do) and need not have this library.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

import amc_agents.models.embedded
from amc_agents.critics.checkpoint import ValueCheckpoint
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.tokenizer import WordTokenizer

POLICY = Path(amc_agents.models.embedded.__path__[0]) / "crafting"
ADAPTER = POLICY / "value"
CONTEXT = "1024"
START_SECONDS = 300
TOLERANCE = 1e-5
DIALOGUE = [
    {"role": "user", "content": "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate."},
    {"role": "assistant", "content": "Thought: oak gate using 2 clay, 1 silk\nAction: get 2 clay"},
    {"role": "user", "content": "Got 2 clay"},
]

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif("AMC_VLLM_PYTHON" not in os.environ, reason="AMC_VLLM_PYTHON names no python with vLLM"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def vllm_server(folder: Path, log: Path, *flags: str) -> Iterator[httpx.Client]:
    """A server of one folder, under the model name "shipped", stopped with all its processes at the end."""
    port = free_port()
    command = [os.environ["AMC_VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "shipped", "--dtype", "float32", "--max-model-len", CONTEXT]
    command += ["--host", "127.0.0.1", "--port", str(port), *flags]
    # A GiB is plenty for a cache of this model; a GPU build ignores the variable.
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("PYTHONPATH", None)
    with log.open("w") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until_ready(client, process, log)
            yield client
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"vLLM ended with status {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    pytest.fail(f"vLLM was not ready after {START_SECONDS} s:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def policy_server(tmp_path_factory) -> Iterator[httpx.Client]:
    with vllm_server(POLICY, tmp_path_factory.mktemp("policy") / "log") as client:
        yield client


@pytest.fixture(scope="module")
def value_folder(tmp_path_factory) -> Path:
    """The policy with the adapter merged in, as a sequence classifier: what vLLM's pooling runner loads."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("value") / "model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(POLICY, num_labels=1, dtype=torch.float32)
    peft.PeftModel.from_pretrained(model, ADAPTER).merge_and_unload().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(POLICY / name, folder)
    return folder


@pytest.fixture(scope="module")
def value_server(value_folder) -> Iterator[httpx.Client]:
    with vllm_server(value_folder, value_folder.parent / "log", "--runner", "pooling") as client:
        yield client


def test_chat_completions_are_those_of_the_shipped_policy(policy_server):
    asked = {"model": "shipped", "messages": DIALOGUE, "n": 3, "logprobs": True, "temperature": 1.0, "max_tokens": 16}
    answer = policy_server.post("/v1/chat/completions", json={**asked, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    tokenizer = WordTokenizer.from_folder(POLICY)
    prompt = tokenizer.encode_chat([(message["role"], message["content"]) for message in DIALOGUE])
    assert answer.json()["prompt_token_ids"] == list(prompt)
    assert len(answer.json()["choices"]) == 3
    for choice in answer.json()["choices"]:
        served = [token["logprob"] for token in choice["logprobs"]["content"]]
        expected = log_probabilities(prompt, choice["token_ids"])
        assert served == pytest.approx(expected, abs=TOLERANCE)
        assert choice["message"]["content"] == tokenizer.decode(choice["token_ids"])


# peft reads a property that transformers deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_classify_gives_the_values_of_the_shipped_critic(value_server):
    golden = ValueCheckpoint.load(ADAPTER).golden
    rows = [list(one.token_ids) for one in golden]
    texts = ["".join(one.segments) for one in golden]
    expected = LlamaScorer(NumpyLlama.load(POLICY, ADAPTER)).values(rows)
    assert np.ptp(expected) > 0.01
    for sent in (rows, texts):
        answer = value_server.post("/classify", json={"model": "shipped", "input": sent, "use_activation": False})
        assert answer.status_code == 200, answer.text
        assert [row["probs"][0] for row in answer.json()["data"]] == pytest.approx(expected, abs=TOLERANCE)


def log_probabilities(prompt: list[int], continuation: list[int]) -> list[float]:
    """Log-probability of each token of the continuation, by the numpy forward pass over the whole text."""
    model = NumpyLlama.load(POLICY)
    tokens = np.array([*prompt, *continuation])
    hidden = model.forward(tokens, np.array([len(tokens)]), model.new_rows(), 0)
    logits = model.logits(hidden.reshape(len(tokens), -1)).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    table = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return [float(table[len(prompt) + place - 1, token]) for place, token in enumerate(continuation)]
