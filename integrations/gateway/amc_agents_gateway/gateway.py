"""A gateway: the upstreams, methods, keys, budgets and metrics of a configuration."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from amc_agents.budget import Budget
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import ConfigurationError
from amc_agents.lac.model import actor_critic_model
from amc_agents.pnlc.model import critique_refine_model
from amc_agents.prices import Price
from amc_agents.runtime.budget_keeper import check_affordable
from amc_agents.runtime.deciding import DecidingModel
from amc_agents.usage import Usage
from amc_agents_gateway.accounts import Accounts
from amc_agents_gateway.callers import Admission, Caller, Keys
from amc_agents_gateway.config import GatewayConfig, LacTable, MethodTable, PnlcTable
from amc_agents_gateway.errors import no_such_model, stopping
from amc_agents_gateway.targets import Deciding, Target, Upstreamed
from amc_agents_gateway.upstream import Upstream, UpstreamChat

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


PROBE_S = 2.0
"""Upstreams are not asked more often whether they answer, since anyone may ask the gateway."""


class Gateway:
    """Everything that requests share.

    Args:
        config: the configuration.

    Raises:
        ConfigurationError: a critic's string is invalid, or does not fit its method; an environment variable with a key
            is missing; or a model has no price and a budget limits dollars, or a critic's answer exceeds a budget.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config, self.metrics = config, Metrics()
        self.draining = False
        """Whether new requests are refused, because the gateway stops."""
        self.keys = Keys(config.keys)
        self.upstreams = {name: Upstream(name, table) for name, table in config.upstreams.items()}
        self._models = {name: UpstreamChat(upstream=upstream) for name, upstream in self.upstreams.items()}
        self._critics = {name: parse_critic(spec) for name, spec in config.critics.items()}
        self.targets: dict[str, Target] = {name: Upstreamed(upstream) for name, upstream in self.upstreams.items()}
        for method, table in (("lac", config.lac), ("pnlc", config.pnlc), ("best-of-n", config.best_of_n)):
            self.targets.update(() if table is None else self._methods(method, table))
        prices = {name: Price(**price.model_dump()) for name, price in config.prices.items()}
        budgets = {name: key.budget for name, key in config.keys.items() if key.budget is not None}
        for budget in budgets.values():
            limits = budget.model_dump(include={"tokens", "dollars", "calls"})
            check_affordable(Budget(**limits), prices, *self._models.values(), *self._critics.values())
        ledger = None if config.server.ledger is None else Path(config.server.ledger)
        self.accounts = Accounts(budgets, prices, ledger)
        self._admissions: dict[str, Admission] = {}
        self._probing, self._probed, self._reachable = asyncio.Lock(), -math.inf, dict[str, bool]()

    def admission(self, caller: Caller) -> Admission:
        """Return what counts the requests of a caller."""
        if caller.name not in self._admissions:
            self._admissions[caller.name] = Admission(caller.table)
        return self._admissions[caller.name]

    def models(self, caller: Caller) -> list[str]:
        """Return the names of the models that a caller may use."""
        return [name for name in self.targets if caller.may_use(name)]

    def target(self, model: str, caller: Caller) -> Target:
        """Return what answers for a model.

        Raises:
            ApiError: 404; it does not exist, or the caller may not use it.
        """
        if model not in self.targets or not caller.may_use(model):
            raise no_such_model(model, self.models(caller))
        return self.targets[model]

    def refuse_when_stopping(self) -> None:
        """Raise `ApiError` (503) once the gateway stops."""
        if self.draining:
            raise stopping()

    async def reachable(self) -> dict[str, bool]:
        """Return which upstreams answer, or did at most `PROBE_S` ago."""
        async with self._probing:
            if time.monotonic() - self._probed > PROBE_S:
                answers = await asyncio.gather(*(upstream.reachable() for upstream in self.upstreams.values()))
                self._reachable, self._probed = dict(zip(self.upstreams, answers, strict=True)), time.monotonic()
            return self._reachable

    def metrics_text(self) -> bytes:
        """Return the metrics, with the state of all budgets."""
        for key in self.accounts.tables:
            account = self.accounts.account(key)
            self.metrics.budget(key, account.spent._asdict(), account.limits)
        return self.metrics.text()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the ledger; at the end close all connections to upstreams.

        Raises:
            ConfigurationError: the ledger cannot be read, or another process uses it.
        """
        async with AsyncExitStack() as stack:
            for upstream in self.upstreams.values():
                stack.push_async_callback(upstream.aclose)
            await stack.enter_async_context(self.accounts.kept())
            yield

    def _methods(self, method: str, table: MethodTable) -> Iterator[tuple[str, Deciding]]:
        for name in self.upstreams if table.upstreams is None else table.upstreams:
            try:
                model = self._deciding(name, method, table)
            except ConfigurationError as error:
                raise ConfigurationError(f"[{method}] for the upstream {name}: {error}") from error
            model = model.model_copy(update={"system_is_task": table.system_is_task})
            yield f"{method}/{name}", Deciding(model, table.critics, table.temperature, self.config.server.keep_alive_s)

    def _deciding(self, name: str, method: str, table: MethodTable) -> DecidingModel:
        critics = {critic: self._critics[critic] for critic in table.critics}
        default = table.critics[0] if table.critics else None
        options: dict[str, Any] = {**table.options, "critics": critics}
        options |= {role: self._models[options[role]] for role in ("world_model", "proposer") if role in options}
        if isinstance(table, PnlcTable):
            return critique_refine_model(self._models[name], default, **options)
        if isinstance(table, LacTable):
            return actor_critic_model(self._models[name], default, **options)
        # The critic alone decides: LAC's alpha -> infinity.
        return actor_critic_model(self._models[name], default, alpha=float("inf"), **options)


def plain_models(names: list[str], created: int) -> Mapping[str, Any]:
    """Return a list of models in OpenAI's form."""
    return {"object": "list", "data": [plain_model(name, created) for name in names]}


def plain_model(name: str, created: int) -> Mapping[str, Any]:
    """Return a model in OpenAI's form."""
    return {"id": name, "object": "model", "created": created, "owned_by": "amc-agents-gateway"}
