"""The shipped policy and value model give the same numbers on a real vLLM server as in numpy."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.models.embedded import model_folder
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.tokenizers import WordTokenizer

POLICY = model_folder("crafting")
ADAPTER = POLICY / "value"
TOLERANCE = 1e-5
DIALOGUE = [
    {"role": "user", "content": "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate."},
    {"role": "assistant", "content": "Thought: oak gate using 2 clay, 1 silk\nAction: get 2 clay"},
    {"role": "user", "content": "Got 2 clay"},
]

pytestmark = pytest.mark.service


def test_chat_completions_equal_those_of_the_shipped_policy(policy_url):
    body = {"model": "policy", "messages": DIALOGUE, "n": 3, "logprobs": True, "temperature": 1.0, "max_tokens": 16}
    answer = httpx.post(f"{policy_url}/v1/chat/completions", json={**body, "return_token_ids": True}, timeout=60)
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


def test_classify_gives_the_values_of_the_shipped_critic(value_url):
    golden = ValueCheckpoint.load(ADAPTER).golden
    rows = [list(prompt.token_ids) for prompt in golden]
    texts = ["".join(prompt.segments) for prompt in golden]
    expected = LlamaScorer(NumpyLlama.load(POLICY, ADAPTER)).values(rows)
    assert np.ptp(expected) > 0.01
    for sent in (rows, texts):
        body = {"model": "value", "input": sent, "use_activation": False}
        answer = httpx.post(f"{value_url}/classify", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert [row["probs"][0] for row in answer.json()["data"]] == pytest.approx(expected, abs=TOLERANCE)


def log_probabilities(prompt: list[int], continuation: list[int]) -> list[float]:
    """Compute the log-probability of each token of the continuation by a numpy forward pass over the whole text."""
    model = NumpyLlama.load(POLICY)
    tokens = np.array([*prompt, *continuation])
    hidden = model.forward(tokens, np.array([len(tokens)]), model.new_rows(), 0)
    logits = model.logits(hidden.reshape(len(tokens), -1)).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    table = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return [float(table[len(prompt) + place - 1, token]) for place, token in enumerate(continuation)]
