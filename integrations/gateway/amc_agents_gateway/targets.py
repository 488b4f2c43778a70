"""The meaning of a model's name: an upstream as it is, or a method (LAC, PNLC, best-of-n) around an upstream."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, Protocol

from amc_agents.budget import Bound
from amc_agents.concurrency.gather import RateGate, gated, side_by_side
from amc_agents.quoting import listed
from amc_agents.runtime.deciding import DecidingModel
from amc_agents.runtime.metering import PolicyMeter, counting_requests
from amc_agents.usage import OPENAI_COUNTS, Meter, Usage, counting, record, reported_usage, total
from amc_agents_gateway.accounts import charged
from amc_agents_gateway.errors import SERVER, UpstreamError, bad_request, unsupported
from amc_agents_gateway.upstream import Upstream
from amc_agents_gateway.wire import DONE, Asked, chunks, event, plain_usage, to_choice, to_messages

_MESSAGE_TOKENS, _TOOL_TOKENS = 16, 1000
"""At most so many tokens mark a message, or explain tool calls to the model (as in `amc_agents`' budgets)."""


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
                    if line == DONE:
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


_log = logging.getLogger(__name__)
_OWN = ("model", "messages", "n", "stream", "stream_options")
"""Parameters that the gateway honours itself."""
_KNOWN = (
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty",
    "logit_bias", "tools", "tool_choice", "parallel_tool_calls", "response_format", "logprobs", "top_logprobs",
    "reasoning_effort",
)  # fmt: skip
"""Parameters that the methods and the budgets may read; others go to the upstream unread."""


class _Impatient(RateGate):
    """Does not wait after an upstream's 429, which the client is told at once, with the time to come back."""

    def close(self, retry_after: float | None = None) -> bool:
        return False


class Deciding:
    """A method around an upstream.

    Args:
        model: makes the decisions.
        critics: names of the critics that a request may choose.
        temperature: sampling temperature, instead of the requests'; None: the requests'.
        keep_alive_s: seconds after which a stream that waits for a decision sends a comment.
    """

    def __init__(
        self, model: DecidingModel, critics: list[str], temperature: float | None, keep_alive_s: float
    ) -> None:
        self._model, self._critics = model, critics
        self._temperature, self._keep_alive_s = temperature, keep_alive_s

    def check(self, asked: Asked) -> None:
        """Refuse a critic that is not offered, and parameters without a meaning for a decision."""
        if asked.critic is not None and asked.critic not in self._critics:
            offered = listed(self._critics) or "none"
            raise bad_request(
                f"the model {asked.model} has no critic of that name. A request may choose: {offered}",
                "amc.critic",
                "critic_not_found",
            )
        for name in ("functions", "function_call"):
            if asked.body.get(name) is not None:
                raise unsupported(name, f"{asked.model} takes tools instead of {name}")
        if asked.body.get("audio") is not None or "audio" in (asked.body.get("modalities") or ()):
            raise unsupported("modalities", f"{asked.model} decides about texts and tool calls, not about audio")
        if self._samples > 1 and asked.body.get("temperature") == 0 and self._temperature is None:
            raise unsupported(
                "temperature",
                f"{asked.model} chooses among {self._samples} samples, which are the same at temperature 0: give a "
                "higher one, or let the gateway's configuration set temperature for the method",
            )
        if self._model.method == "pnlc" and (asked.body.get("logprobs") or asked.body.get("top_logprobs") is not None):
            raise unsupported(
                "logprobs", f"{asked.model} may rewrite an answer, whose log-probabilities would not be the policy's"
            )

    async def answer(self, asked: Asked) -> dict[str, Any]:
        """Make `n` independent decisions."""
        messages = to_messages(asked.messages)
        with counting() as meter, counting_requests(PolicyMeter(meter)), gated(_Impatient()):
            decided = await side_by_side(*(self._decision(messages, asked, i) for i in range(asked.n)))
        method = self._model.method
        summaries = [message.response_metadata[method] for message in decided]
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked.model,
            "choices": [to_choice(message, i) for i, message in enumerate(decided)],
            "usage": plain_usage(total(meter.read())),
            "amc": {"usage": _by_role(meter), "decisions": [*map(_public, summaries)]},
        }

    async def events(self, asked: Asked) -> AsyncGenerator[bytes]:
        """Decide, and yield the answer as a stream: before the decision there are only comments."""
        work = asyncio.ensure_future(self.answer(asked))
        try:
            while not (await asyncio.wait([work], timeout=self._keep_alive_s))[0]:
                yield b": deciding"
        finally:
            work.cancel()  # If the client left.
            await asyncio.wait([work])
        for chunk in chunks(work.result(), with_usage=asked.wants_usage):
            yield event(chunk)

    @property
    def _samples(self) -> int:
        settings = self._model.settings
        return 1 if getattr(settings, "refine", False) else settings.k

    async def _decision(self, messages: list[Any], asked: Asked, number: int) -> Any:
        given = {name: value for name, value in asked.body.items() if value is not None and name not in _OWN}
        call: dict[str, Any] = {name: given.pop(name) for name in _KNOWN if name in given}
        if self._temperature is not None:
            call["temperature"] = self._temperature
        if (stop := given.pop("stop", None)) is not None:
            call["stop"] = [stop] if isinstance(stop, str) else stop
        if type(seed := given.pop("seed", None)) is int:
            call["seed"] = seed + number  # Equal seeds would make the n decisions equal.
        if asked.critic is not None:
            call["critic"] = asked.critic
        return await self._model.ainvoke(messages, **call, extra_body=given)


def _by_role(meter: Meter) -> dict[str, dict[str, int]]:
    return {role: _counts(usage) for role, usage in meter.read().items()}


def _counts(usage: Usage) -> dict[str, int]:
    missing = {"calls_without_usage": usage.missing} if usage.missing else {}
    return {**usage.as_plain(), **missing}


def _public(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client may read of a decision: a note's reason, after its colon, may name internal addresses."""
    for note in summary["notes"]:
        _log.info("%s", note)
    notes = [note.partition(":")[0] for note in summary["notes"]]
    return {**{name: value for name, value in summary.items() if name != "usage"}, "notes": notes}
