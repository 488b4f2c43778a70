"""For any answer of a server, a critic returns numbers or raises a short named error in one line, without the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from amc_agents.critics.goal.embeddings import ServerEmbeddings
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.reading import CompletionsReader
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.lac.text_scoring import Text
from amc_agents.lac.vllm_text_scorer import CompletionsScorer
from tests.critics.mutations import mutations
from tests.critics.server.right_answers import right
from tests.critics.value.fake_vllm import folder, trajectory

__all__ = ["folder"]
KEY = "sk-do-not-show-0123456789"
BYTES = (b"", b"{", b"<html>", b"[" * 100_000, b"\xff", b"1" * 5000, KEY.encode(), json.dumps({"data": KEY}).encode())
Change = Callable[[str, Any], Any]


def server(change: Change) -> ModelServer:
    def answer(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content) if request.content else None
        body = change(request.url.path, right(request.url.path, sent))
        return httpx.Response(200, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    return ModelServer("http://m", transport=httpx.MockTransport(answer), retry_for=0, api_key=KEY)


def pooling(folder, change):
    critic = VLLMCritic("http://m", checkpoint=folder, retry_for=0, api_key=KEY)
    critic._server = server(change)
    return lambda: critic.values([trajectory(1)])


def verdict(folder, change):
    critic = VerdictCritic(CompletionsReader(server(change), tokenize=lambda text: list(map(ord, text))))
    return lambda: critic.values([trajectory(1)])


def embeddings(folder, change):
    embeddings_client = ServerEmbeddings(server(change), "m")

    async def ask():
        return (await embeddings_client.embed(["a", "b"])).vectors

    return ask


def scorer(folder, change):
    client = CompletionsScorer(server(change))
    return lambda: client.log_likelihoods([{"role": "user", "content": "hi"}], [Text("", "a"), Text("", "b")], 1.0)


ASKING = {
    (pooling, "/v1/models"), (pooling, "/classify"),
    (verdict, "/v1/models"), (verdict, "/v1/completions"),
    (embeddings, "/v1/embeddings"),
    (scorer, "/v1/models"), (scorer, "/tokenize"), (scorer, "/v1/completions"),
}  # fmt: skip


async def numbers_or_named(ask: Callable[[], Awaitable[Any]]) -> None:
    try:
        numbers = await ask()
    except (CriticError, CheckpointError) as error:
        message = str(error)
    else:
        assert np.isfinite(numbers).all()
        return
    assert message.isprintable()
    assert len(message) <= 400
    assert KEY[:12] not in message


def replaced(path: str, wrong: Any) -> Change:
    """Replace the answer of one path."""
    return lambda requested, body: wrong if requested == path else body


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "path"), sorted(ASKING, key=str))
def test_a_changed_value_gives_numbers_or_a_named_error(folder, make, path):
    seen = {}
    asyncio.run(make(folder, lambda requested, body: seen.setdefault(requested, body) and body)())

    async def try_all() -> None:
        for wrong in mutations(seen[path]):
            await numbers_or_named(make(folder, replaced(path, wrong)))

    asyncio.run(try_all())


@pytest.mark.parametrize(("make", "path"), sorted(ASKING, key=str))
def test_invalid_json_is_a_named_error(folder, make, path):
    async def try_all() -> None:
        for wrong in BYTES:
            with pytest.raises((CriticError, CheckpointError)):
                await make(folder, replaced(path, wrong))()
            await numbers_or_named(make(folder, replaced(path, wrong)))

    asyncio.run(try_all())
