"""Usage of a run: model calls and tokens, by role and by model. `amc_agents.prices` computes the cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from amc_agents.context import changed_context, particle_context


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls and tokens of a role (policy, critic, ...), with `+`."""

    calls: int = 0
    """Number of requests; a batch computed by a local model counts one call per item."""
    input_tokens: int = 0
    """Tokens read, cached tokens included."""
    output_tokens: int = 0
    """Tokens written."""
    cached_tokens: int = 0
    """Tokens read from a cache instead of computed; part of `input_tokens`."""
    missing: int = 0
    """Calls without reported usage: the token counts are then lower bounds."""
    estimated: int = 0
    """Calls that were cancelled and whose tokens are what a budget had reserved for them: upper bounds."""

    def __post_init__(self) -> None:
        """Cap the cached tokens: some providers report more of them than input tokens."""
        if self.cached_tokens > self.input_tokens:
            object.__setattr__(self, "cached_tokens", self.input_tokens)

    def __add__(self, other: Usage) -> Usage:
        """Add two usages."""
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.missing + other.missing,
            self.estimated + other.estimated,
        )

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    def as_plain(self) -> dict[str, int]:
        """Return the counts of calls and tokens as JSON values, for records and events."""
        return {name: getattr(self, name) for name in ("calls", "input_tokens", "output_tokens", "cached_tokens")}


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
    """Read the usage of a request from the token counts in its answer; `missing` if they are not reported."""
    read = _count(counts, names.read) if counts else None
    if read is None:
        return Usage(calls=1, missing=1)
    cached = _count(counts.get(names.details), names.cached)
    return Usage(1, read, _count(counts, names.written) or 0, cached or 0)


def _count(counts: Any, name: str) -> int | None:
    count = counts.get(name) if isinstance(counts, Mapping) else None
    return count if type(count) is int and count >= 0 else None


def total(usage: Mapping[str, Usage]) -> Usage:
    """Sum the usages of all roles, or of all models of a role."""
    return sum(usage.values(), Usage())


class Meter:
    """Adds up recorded usage. Thread-safe.

    Args:
        around: a meter that counts the same usage too.
    """

    def __init__(self, around: Meter | None = None) -> None:
        self._around = around
        self._usage: dict[str, dict[str, Usage]] = {}
        self._lock = threading.Lock()

    def add(self, role: str, usage: Usage, model: str = "") -> None:
        """Count `usage` for `role` and `model`; an empty model is an unknown model."""
        with self._lock:
            used = self._usage.setdefault(role, {})
            before = used.get(model)
            used[model] = usage if before is None else before + usage
        if self._around is not None:
            self._around.add(role, usage, model)

    def read(self) -> dict[str, Usage]:
        """Return the usage of each role so far."""
        return {role: total(used) for role, used in self.by_model().items()}

    def by_model(self) -> dict[str, dict[str, Usage]]:
        """Return {role: {model: usage so far}}, the form that `prices.cost` takes."""
        with self._lock:
            return {role: dict(used) for role, used in self._usage.items()}


def record(role: str, usage: Usage, model: str = "") -> None:
    """Count `usage` with the meter of this context, if any. Critics call it for each request.

    Args:
        role: "policy", "critic", ...
        usage: usage of the request.
        model: `provider:name`, or the name alone for a self-hosted server.
    """
    meter: Meter | None = particle_context().meter
    if meter is not None:
        meter.add(role, usage, model)


@contextmanager
def metering(meter: Meter) -> Iterator[None]:
    """Make `record` count with `meter`, in this context and in tasks started from it."""
    with changed_context(meter=meter):
        yield


@contextmanager
def counting() -> Iterator[Meter]:
    """Count what is recorded inside the block, and then record it with the surrounding meter too."""
    meter = Meter()
    try:
        with metering(meter):
            yield meter
    finally:
        for role, models in meter.by_model().items():
            for model, usage in models.items():
                record(role, usage, model)
