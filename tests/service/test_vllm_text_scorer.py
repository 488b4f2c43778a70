"""Log-likelihoods of given texts on a real vLLM server, equal to those of the embedded model's forward pass."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from amc_agents.critics.server.client import ModelServer
from amc_agents.errors import CriticError
from amc_agents.lac.text_scoring import ChatRescorer, EmbeddedScorer, Text
from amc_agents.lac.vllm_text_scorer import CompletionsScorer

pytestmark = pytest.mark.service

TOLERANCE = 1e-4
DIALOGUE = [
    {"role": "user", "content": "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate."},
    {"role": "assistant", "content": "Thought: oak gate using 2 clay, 1 silk\nAction: get 2 clay"},
    {"role": "user", "content": "Got 2 clay"},
]
THOUGHTS = ["oak gate using 2 clay, 1 silk", "silk", ""]
ACTIONS = ["get 1 silk", "get 2 silk", "craft 1 oak gate using 2 clay, 1 silk", "inventory"]


def rescorers(url, temperature, **settings):
    served = CompletionsScorer(ModelServer(url), **settings)
    return (
        ChatRescorer(scorer, DIALOGUE, temperature=temperature) for scorer in (served, EmbeddedScorer.load("crafting"))
    )


async def test_the_server_and_the_forward_pass_agree(policy_url):
    served, embedded = rescorers(policy_url, 1.0)
    actual, expected = [await scorer.log_likelihoods(THOUGHTS, ACTIONS) for scorer in (served, embedded)]
    assert actual.shape == (3, 4)
    assert np.ptp(expected) > 1
    assert actual == pytest.approx(expected, abs=TOLERANCE)


async def test_sampled_texts_have_the_log_likelihood_that_was_reported_with_them(policy_url):
    body = {"model": "policy", "messages": DIALOGUE, "n": 4, "logprobs": True, "temperature": 1.0, "max_tokens": 40}
    choices = httpx.post(f"{policy_url}/v1/chat/completions", json=body, timeout=60).json()["choices"]
    whole = [choice for choice in choices if choice["finish_reason"] == "stop"]
    assert whole
    reported = [sum(token["logprob"] for token in choice["logprobs"]["content"]) for choice in whole]
    texts = [Text("", choice["message"]["content"]) for choice in whole]
    actual = await CompletionsScorer(ModelServer(policy_url)).log_likelihoods(DIALOGUE, texts, 1.0)
    assert actual == pytest.approx(reported, abs=TOLERANCE)


async def test_below_temperature_1_the_likeliest_tokens_bound_it(policy_url):
    served, embedded = rescorers(policy_url, 0.7, tolerance=0.01)
    actual, expected = [await scorer.log_likelihoods(THOUGHTS, ACTIONS) for scorer in (served, embedded)]
    assert actual == pytest.approx(expected, abs=0.005)


async def test_bounds_that_are_too_far_apart_are_refused(policy_url):
    served, _ = rescorers(policy_url, 0.9, top=1, tolerance=0.01)
    with pytest.raises(CriticError, match="only known to lie between"):
        await served.log_likelihoods(THOUGHTS, ACTIONS)


async def test_above_temperature_1_all_tokens_are_needed(policy_url):
    served, _ = rescorers(policy_url, 1.2)
    with pytest.raises(CriticError, match="--max-logprobs -1"):
        await served.log_likelihoods(THOUGHTS, ACTIONS)
    unserved, _ = rescorers(policy_url, 1.2, top=-1)
    with pytest.raises(CriticError, match="max allowed"):
        await unserved.log_likelihoods(THOUGHTS, ACTIONS)
