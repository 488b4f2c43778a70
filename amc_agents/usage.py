"""What a run used: model calls and tokens, by role and by model. What that costs: `amc_agents.prices`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls and tokens of one role (policy, critic, ...). Usages add up.

    Input tokens include those that a cache answered; `cached_tokens` says how many those were.
    """

    calls: int = 0
    """Requests made: a batch that a model computes in one go counts one call per item."""
    input_tokens: int = 0
    """Tokens read, cached ones included."""
    output_tokens: int = 0
    """Tokens written."""
    cached_tokens: int = 0
    """Tokens read that were not computed again."""
    missing: int = 0
    """Calls whose provider reported no usage: the token counts are then lower bounds."""

    def __post_init__(self) -> None:
        """Cap the cached tokens, of which some providers report more than they say were read."""
        if self.cached_tokens > self.input_tokens:
            object.__setattr__(self, "cached_tokens", self.input_tokens)

    def __add__(self, other: Usage) -> Usage:
        """The usage of both together."""
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.missing + other.missing,
        )

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens


class CountNames(NamedTuple):
    """Names under which a provider reports token counts."""

    read: str
    written: str
    details: str
    """Name of an object with details about the tokens read."""
    cached: str
    """Name, in those details, of the tokens that came from a cache."""


LANGCHAIN_COUNTS = CountNames("input_tokens", "output_tokens", "input_token_details", "cache_read")
"""LangChain's `usage_metadata`."""
OPENAI_COUNTS = CountNames("prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens")
"""The `usage` of OpenAI's HTTP API."""


def reported_usage(counts: Any, names: CountNames) -> Usage:
    """Usage of one request, from the token counts in its answer; `missing` where the tokens read are not reported."""
    read = _count(counts, names.read)
    if read is None:
        return Usage(calls=1, missing=1)
    cached = _count(counts.get(names.details), names.cached)
    return Usage(1, read, _count(counts, names.written) or 0, cached or 0)


def _count(counts: Any, name: str) -> int | None:
    count = counts.get(name) if isinstance(counts, Mapping) else None
    return count if type(count) is int and count >= 0 else None


def total(usage: Mapping[str, Usage]) -> Usage:
    """All roles, or all models of a role, together."""
    return sum(usage.values(), Usage())


class Meter:
    """Adds up what is recorded while it is in use, from any thread."""

    def __init__(self) -> None:
        self._usage: dict[str, dict[str, Usage]] = {}
        self._lock = threading.Lock()

    def add(self, role: str, usage: Usage, model: str = "") -> None:
        """Count `usage` for `role`, and for the model that was asked where its name is known."""
        with self._lock:
            used = self._usage.setdefault(role, {})
            before = used.get(model)
            used[model] = usage if before is None else before + usage

    def read(self) -> dict[str, Usage]:
        """What each role has used so far."""
        return {role: total(used) for role, used in self.by_model().items()}

    def by_model(self) -> dict[str, dict[str, Usage]]:
        """{role: {model: what it has used so far}}: what prices are looked up by."""
        with self._lock:
            return {role: dict(used) for role, used in self._usage.items()}


_meter: ContextVar[Meter | None] = ContextVar("amc_meter", default=None)


def record(role: str, usage: Usage, model: str = "") -> None:
    """Count `usage` for `role` with the meter in use, if there is one: a critic calls it for each request.

    Args:
        role: "policy", "critic", ...
        usage: what was used.
        model: the model that was asked: `provider:name`, or the name alone for a server of one's own.
    """
    meter = _meter.get()
    if meter is not None:
        meter.add(role, usage, model)


@contextmanager
def metering(meter: Meter) -> Iterator[None]:
    """Let `record` count with `meter`, in this context and the tasks started from it."""
    token = _meter.set(meter)
    try:
        yield
    finally:
        _meter.reset(token)


@contextmanager
def counting() -> Iterator[Meter]:
    """Count what is recorded inside, and tell whoever counted before as well."""
    meter = Meter()
    try:
        with metering(meter):
            yield meter
    finally:
        for role, models in meter.by_model().items():
            for model, used in models.items():
                record(role, used, model)
