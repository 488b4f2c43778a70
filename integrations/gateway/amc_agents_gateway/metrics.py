"""Prometheus metrics of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from amc_agents.usage import Usage

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of a gateway, in a registry of their own.

    Labels are names of the configuration, so that clients cannot make up new series.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        about: dict[str, Any] = {"registry": self._registry, "namespace": "amc_gateway"}
        self._requests = Counter("requests", "Requests by outcome", ("model", "key", "status", "code"), **about)
        self._seconds = Histogram("request_seconds", "Durations", ("model",), buckets=_SECONDS, **about)
        self._tokens = Counter("tokens", "Tokens by role", ("model", "key", "role", "direction"), **about)
        self._calls = Counter("calls", "Requests to models and critics", ("model", "key", "role"), **about)
        self.in_progress = Gauge("in_progress", "Requests in progress", **about)
        self._spent = Gauge("budget_spent", "Spent of a key's budget", ("key", "resource"), **about)
        self._limit = Gauge("budget_limit", "Limit of a key's budget", ("key", "resource"), **about)

    def ended(self, model: str, key: str, status: int, code: str, seconds: float, usage: Mapping[str, Usage]) -> None:
        """Count a request.

        Args:
            model: name of the model; empty: unknown.
            key: name of the key; empty: unknown.
            status: the HTTP status; 499: the client left.
            code: code of the error; empty: no error.
            seconds: its duration.
            usage: its usage by role.
        """
        self._requests.labels(model, key, str(status), code).inc()
        self._seconds.labels(model).observe(seconds)
        for role, used in usage.items():
            self._calls.labels(model, key, role).inc(used.calls)
            self._tokens.labels(model, key, role, "input").inc(used.input_tokens)
            self._tokens.labels(model, key, role, "output").inc(used.output_tokens)

    def budget(self, key: str, spent: Mapping[str, float], limits: Mapping[str, float]) -> None:
        """Set what a key has spent and may spend."""
        for resource, limit in limits.items():
            self._spent.labels(key, resource).set(spent[resource])
            self._limit.labels(key, resource).set(limit)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
