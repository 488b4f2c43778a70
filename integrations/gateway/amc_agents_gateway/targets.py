"""What a name of a model stands for: an upstream as it is, or a method around an upstream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, Protocol

from amc_agents.budget import Bound
from amc_agents.usage import OPENAI_COUNTS, Usage, record, reported_usage
from amc_agents_gateway.charging import charged
from amc_agents_gateway.errors import SERVER, UpstreamError, unsupported
from amc_agents_gateway.request import Asked
from amc_agents_gateway.upstream import Upstream
from amc_agents_gateway.wire import event

_MESSAGE_TOKENS, _TOOL_TOKENS = 16, 1000
"""At most so many tokens mark a message, or explain tool calls to the model (as in `amc_agents`' budgets)."""
_DONE = event(b"[DONE]")


class Target(Protocol):
    """Answers the requests for a model."""

    def check(self, asked: Asked) -> None:
        """Raise `ApiError` (400) for a parameter that the model cannot honour."""
        ...

    async def answer(self, asked: Asked) -> dict[str, Any]:
        """Return the whole answer."""
        ...

    def events(self, asked: Asked) -> AsyncGenerator[bytes]:
        """Yield the events of a stream, without the empty lines that end them and without the last, `[DONE]`."""
        ...


class Upstreamed:
    """An upstream as it is: answers and streams are passed on unchanged."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def check(self, asked: Asked) -> None:
        """Refuse the choice of a critic, which an upstream alone does not have."""
        if asked.critic is not None:
            raise unsupported("amc.critic", f"the model {asked.model} decides without a critic")

    async def answer(self, asked: Asked) -> dict[str, Any]:
        """Pass on the answer."""
        body = self._upstream.prepared(asked.body)
        async with charged(self._bound(body)) as charge:
            answer = await self._upstream.complete(body)
            usage = reported_usage(answer.get("usage"), OPENAI_COUNTS)
            charge.settle(usage)
        record("policy", usage, self._upstream.charged_as)
        return answer

    async def events(self, asked: Asked) -> AsyncGenerator[bytes]:
        """Pass on the events. The usage is always requested, and passed on only to a client that wants it."""
        options = {**(asked.body.get("stream_options") or {}), "include_usage": True}
        body = self._upstream.prepared({**asked.body, "stream_options": options})
        usage, done = Usage(calls=1, missing=1), False
        try:
            async with charged(self._bound(body)) as charge, self._upstream.stream(body) as lines:
                async for line in lines:
                    counts = _reported(line)
                    if counts is not None:
                        usage = counts.usage
                        charge.settle(usage)
                    if line == _DONE:
                        done = True
                    elif counts is None or not counts.alone or asked.wants_usage:
                        yield line
                if not done:
                    message = f"the upstream {self._upstream.name} broke off its answer"
                    raise UpstreamError(502, message, type=SERVER, code="upstream_error")
                charge.settle(usage)
        finally:
            record("policy", usage, self._upstream.charged_as)

    def _bound(self, body: Mapping[str, Any]) -> Bound:
        asked = Asked("", body)
        # A token of text is at least a byte long.
        read = len(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
        read += _MESSAGE_TOKENS * (len(asked.messages) + 1) + (_TOOL_TOKENS if body.get("tools") else 0)
        written = None if asked.max_tokens is None else asked.max_tokens * asked.n
        return Bound(self._upstream.charged_as, read, written)


class _Counts(NamedTuple):
    usage: Usage
    alone: bool
    """True if the event has nothing else."""


def _reported(line: bytes) -> _Counts | None:
    """Return the usage in an event; None: it has none."""
    if b'"usage"' not in line or not line.startswith(b"data:"):
        return None
    try:
        chunk = json.loads(line[5:])
    except ValueError:
        return None
    counts = chunk.get("usage") if isinstance(chunk, dict) else None
    return _Counts(reported_usage(counts, OPENAI_COUNTS), not chunk.get("choices")) if counts else None
