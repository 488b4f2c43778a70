"""Convert usage to dollars: by the user's price table, else by the library `genai-prices` (extra: prices).

A model without a price is reported, never counted as free: the total is then marked as a lower bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from typing import Protocol

from amc_agents.errors import ConfigurationError
from amc_agents.usage import Usage

MILLION = 1_000_000

_DATE = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8})$")


class HasUsageByModel(Protocol):
    """A result with its usage by role and model, such as `Run`."""

    @property
    def usage_by_model(self) -> Mapping[str, Mapping[str, Usage]]:
        """{role: {model: usage}}."""
        ...


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens of a model; 0 is allowed.

    Raises:
        ConfigurationError: a price is negative or not finite.
    """

    input: float
    """Price of input tokens."""
    output: float
    """Price of output tokens."""
    cached_input: float | None = None
    """Price of cached input tokens; None: as `input`."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("input", "output", "cached_input"):
            dollars = getattr(self, name)
            if dollars is not None and not (math.isfinite(dollars) and dollars >= 0):
                raise ConfigurationError(
                    f"a price must be at least 0 dollars per million tokens, got {name} = {dollars}"
                )


class Rates(Protocol):
    """Any object with the rates of a `Price`, such as an entry of the configuration's table `[prices]`."""

    @property
    def input(self) -> float:
        """Dollars per million input tokens."""

    @property
    def output(self) -> float:
        """Dollars per million output tokens."""

    @property
    def cached_input(self) -> float | None:
        """Dollars per million cached input tokens; None: as `input`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars, and the usage that they do not include. `str` shows both."""

    dollars: Mapping[str, float]
    """Dollars by role; 0 for a role whose models have no price."""
    unpriced: tuple[str, ...] = ()
    """Sorted names of models that used tokens and have no price; "" is a model of unknown name."""
    missing: int = 0
    """Number of requests without reported usage, failed requests included; not in the dollars."""
    hint: str = field(default="", compare=False)
    """Advice on getting prices for the unpriced models."""

    @property
    def total(self) -> float:
        """Total of all roles in dollars."""
        return math.fsum(self.dollars.values())

    @property
    def is_lower_bound(self) -> bool:
        """True if a price or an amount of usage is unknown."""
        return bool(self.unpriced or self.missing)

    def __str__(self) -> str:
        reasons = []
        if self.unpriced:
            reasons.append(f"no price for {', '.join(name or 'an unnamed model' for name in self.unpriced)}")
        if self.missing:
            reasons.append(f"{self.missing} requests without reported usage")
        if not reasons:
            return f"${self.total:.4f}"
        return f"at least ${self.total:.4f} ({'; '.join(reasons)}){'. ' + self.hint if self.hint else ''}"


def cost(usage_by_model: Mapping[str, Mapping[str, Usage]], prices: Mapping[str, Rates] | None = None) -> Cost:
    """Convert usage to dollars.

    Args:
        usage_by_model: {role: {model: usage}}, such as `Run.usage_by_model`.
        prices: the user's table, which has precedence over the library. A key is the model as in `usage_by_model`
            (`provider:name`), its name alone, or the name without the date that providers append.
    """
    dollars: dict[str, float] = {}
    unpriced: set[str] = set()
    for role, model, usage in _entries(usage_by_model):
        dollars.setdefault(role, 0.0)
        if not usage.tokens:
            continue
        rates = _in_table(model, prices or {})
        price = dollars_of(usage, rates) if rates is not None else _by_library(model, usage)
        if price is None:
            unpriced.add(model)
        else:
            dollars[role] += price
    missing = sum(usage.missing for _, _, usage in _entries(usage_by_model))
    return Cost(dollars, tuple(sorted(unpriced)), missing, _hint(unpriced))


def dollars_of(usage: Usage, price: Rates) -> float:
    """Return the cost of a usage in dollars; cached tokens cost the cached rate."""
    cached_rate = price.input if price.cached_input is None else price.cached_input
    fresh = usage.input_tokens - usage.cached_tokens
    return (fresh * price.input + usage.cached_tokens * cached_rate + usage.output_tokens * price.output) / MILLION


def cost_of(run: HasUsageByModel, prices: Mapping[str, Rates] | None = None) -> Cost:
    """Cost of a run, such as an `amc_agents.Run`; see `cost`."""
    return cost(run.usage_by_model, prices)


def _entries(usage_by_model: Mapping[str, Mapping[str, Usage]]) -> Iterator[tuple[str, str, Usage]]:
    for role, models in usage_by_model.items():
        for model, usage in models.items():
            yield role, model, usage


def _in_table(model: str, prices: Mapping[str, Rates]) -> Rates | None:
    name = model.partition(":")[2] or model
    for key in (model, name, _DATE.sub("", model), _DATE.sub("", name)):
        if key in prices:
            return prices[key]
    return None


def _by_library(model: str, usage: Usage) -> float | None:
    """Return dollars by `genai-prices`; None if it is not installed or does not know the provider or the model."""
    provider, _, name = model.partition(":")
    # A name without a provider may be a self-hosted server of a well-known model: the list price would be wrong.
    if not name or not _library_is_installed():
        return None
    from genai_prices import Usage as Tokens  # type: ignore[import-not-found, unused-ignore]
    from genai_prices import calc_price

    # Some prices depend on the length of a request: price the average request, not the sum of all.
    requests = max(1, usage.calls - usage.missing)
    tokens = Tokens(
        input_tokens=Decimal(usage.input_tokens) / requests,
        output_tokens=Decimal(usage.output_tokens) / requests,
        cache_read_tokens=Decimal(usage.cached_tokens) / requests,
    )
    try:
        return float(calc_price(tokens, name, provider_id=provider).total_price * requests)
    except LookupError:
        return None


def _library_is_installed() -> bool:
    return find_spec("genai_prices") is not None


def _hint(unpriced: set[str]) -> str:
    if not unpriced:
        return ""
    table = "give prices in the table [prices] of the configuration, in dollars per million tokens (0 is allowed)"
    if _library_is_installed() or not any(":" in model for model in unpriced):
        return table[0].upper() + table[1:]
    return f"Install the price list, pip install 'amc-agents[prices]', or {table}"
