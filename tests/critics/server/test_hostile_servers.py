"""Whatever a server answers, a critic gives numbers or a named error of one line, short and without the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from amc_agents.critics.goal.embeddings import ServerEmbeddings
from amc_agents.critics.server.http import ModelServer
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.reading import CompletionsReader
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.lac.text_scoring import Text
from amc_agents.lac.vllm_text_scorer import CompletionsScorer
from tests.critics.mutations import mutations
from tests.critics.value.fake_vllm import folder, score, trajectory

__all__ = ["folder"]
KEY = "sk-do-not-show-0123456789"
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}
BYTES = (b"", b"{", b"<html>", b"[" * 100_000, b"\xff", b"1" * 5000, KEY.encode(), json.dumps({"data": KEY}).encode())
Change = Callable[[str, Any], Any]


def right(path: str, asked: Any) -> Any:
    """What vLLM would answer; every two rows that are scored have one score."""
    if path == "/v1/models":
        return {"object": "list", "data": [{"id": "m", "root": None, "max_model_len": 4096}]}
    if path == "/classify":
        rows = [{"index": i, "probs": [score(row)]} for i, row in enumerate(asked["input"])]
        return {"object": "list", "data": rows, "usage": USAGE}
    if path == "/v1/embeddings":
        rows = [{"index": i, "embedding": [float(i), 1.0]} for i, _ in enumerate(asked["input"])]
        return {"data": rows, "usage": USAGE}
    if path == "/tokenize":
        text = asked.get("prompt", "pqrstx" if not asked.get("add_generation_prompt", True) else "pqrst")
        tokens = [*map(ord, text), *([0] if "prompt" not in asked and text.endswith("x") else [])]
        return {"tokens": tokens, "count": len(tokens)}
    if "logprob_token_ids" in asked:
        top = [{f"token_id:{token}": -1.5 for token in asked["logprob_token_ids"]}]
        choices = [{"index": i, "logprobs": {"top_logprobs": top}} for i, _ in enumerate(asked["prompt"])]
        return {"choices": choices, "usage": USAGE}
    choices = [
        {"index": i, "prompt_logprobs": [None, *({str(token): {"logprob": -1.0, "rank": 1}} for token in row[1:])]}
        for i, row in enumerate(asked["prompt"])
    ]
    return {"choices": choices, "usage": USAGE}


def server(change: Change) -> ModelServer:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content) if request.content else None
        said = change(request.url.path, right(request.url.path, asked))
        return httpx.Response(200, content=said if isinstance(said, bytes) else json.dumps(said).encode())

    return ModelServer("http://m", transport=httpx.MockTransport(answer), retry_for=0, api_key=KEY)


def pooling(folder, change):
    critic = VLLMCritic("http://m", checkpoint=folder, retry_for=0, api_key=KEY)
    critic._server = server(change)
    return lambda: critic.values([trajectory(1)])


def verdict(folder, change):
    critic = VerdictCritic(CompletionsReader(server(change), tokenize=lambda text: [ord(one) for one in text]))
    return lambda: critic.values([trajectory(1)])


def embeddings(folder, change):
    found = ServerEmbeddings(server(change), "m")

    async def ask():
        return (await found.embed(["a", "b"])).vectors

    return ask


def scorer(folder, change):
    found = CompletionsScorer(server(change))
    return lambda: found.log_likelihoods([{"role": "user", "content": "hi"}], [Text("", "a"), Text("", "b")], 1.0)


ASKING = {
    (pooling, "/v1/models"), (pooling, "/classify"),
    (verdict, "/v1/models"), (verdict, "/v1/completions"),
    (embeddings, "/v1/embeddings"),
    (scorer, "/v1/models"), (scorer, "/tokenize"), (scorer, "/v1/completions"),
}  # fmt: skip


async def numbers_or_named(ask: Callable[[], Awaitable[Any]]) -> None:
    try:
        found = await ask()
    except (CriticError, CheckpointError) as error:
        said = str(error)
    else:
        assert np.isfinite(found).all()
        return
    assert said.isprintable()
    assert len(said) <= 400
    assert KEY[:12] not in said


@pytest.mark.parametrize(("make", "path"), sorted(ASKING, key=str))
def test_one_value_of_another_type(folder, make, path):
    seen = {}
    asyncio.run(make(folder, lambda where, said: seen.setdefault(where, said) and said)())

    async def all_of_them() -> None:
        for wrong in mutations(seen[path]):
            await numbers_or_named(make(folder, lambda where, said, wrong=wrong: wrong if where == path else said))

    asyncio.run(all_of_them())


@pytest.mark.parametrize(("make", "path"), sorted(ASKING, key=str))
def test_what_is_not_even_json(folder, make, path):
    async def all_of_them() -> None:
        for wrong in BYTES:
            with pytest.raises((CriticError, CheckpointError)):
                await make(folder, lambda where, said, wrong=wrong: wrong if where == path else said)()
            await numbers_or_named(make(folder, lambda where, said, wrong=wrong: wrong if where == path else said))

    asyncio.run(all_of_them())
