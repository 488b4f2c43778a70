"""What usage costs in dollars: by the user's own table first, then by the library `genai-prices` (extra: prices).

A model without a price is named, never counted as free: the total is then a lower bound, and says so.
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
    """Dollars per million tokens of one model; 0 is allowed, for a model that costs nothing by the token."""

    input: float
    """Tokens read."""
    output: float
    """Tokens written."""
    cached_input: float | None = None
    """Tokens read from the provider's cache; None: as `input`."""

    def __post_init__(self) -> None:
        """Refuse what is no price."""
        for name in ("input", "output", "cached_input"):
            dollars = getattr(self, name)
            if dollars is not None and not (math.isfinite(dollars) and dollars >= 0):
                raise ConfigurationError(f"a price is 0 or more dollars per million tokens, got {name} = {dollars}")


class Rates(Protocol):
    """What has the three rates of a `Price`, such as an entry of the configuration's table `[prices]`."""

    @property
    def input(self) -> float:
        """Dollars per million tokens read."""

    @property
    def output(self) -> float:
        """Dollars per million tokens written."""

    @property
    def cached_input(self) -> float | None:
        """Dollars per million tokens read from a cache; None: as `input`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars, and what they leave out. `str` says both."""

    dollars: Mapping[str, float]
    """By role: what is priced. A role whose models have no price is there with 0."""
    unpriced: tuple[str, ...] = ()
    """Models that used tokens and have no price, sorted; "" is a model that did not say its name."""
    missing: int = 0
    """Requests whose provider reported no usage, failed ones included: they are not in the dollars."""
    hint: str = field(default="", compare=False)
    """What to do about the unpriced."""

    @property
    def total(self) -> float:
        """All roles together, in dollars."""
        return math.fsum(self.dollars.values())

    @property
    def is_lower_bound(self) -> bool:
        """True where something was used whose price, or whose amount, is not known."""
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
    """Price what was used.

    Args:
        usage_by_model: {role: {model: usage}}, such as `Run.usage_by_model`.
        prices: the user's table, which goes before the library. A key is a model as the usage names it
            (`provider:name`), its name alone, or the name without the date that a provider answers with.
    """
    dollars: dict[str, float] = {}
    unpriced: set[str] = set()
    for role, model, usage in _entries(usage_by_model):
        dollars.setdefault(role, 0.0)
        if not usage.tokens:
            continue
        own = _in_table(model, prices or {})
        price = dollars_of(usage, own) if own is not None else _by_library(model, usage)
        if price is None:
            unpriced.add(model)
        else:
            dollars[role] += price
    missing = sum(usage.missing for _, _, usage in _entries(usage_by_model))
    return Cost(dollars, tuple(sorted(unpriced)), missing, _hint(unpriced))


def dollars_of(usage: Usage, price: Rates) -> float:
    """What a usage costs; tokens that a cache answered are paid at the cached rate."""
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
    """Dollars by `genai-prices`; None where it is not installed, or does not know the provider or the model."""
    provider, _, name = model.partition(":")
    # A name alone may be a server of one's own that serves a well-known model: its list price would be wrong.
    if not name or not _library_is_installed():
        return None
    from genai_prices import Usage as Tokens  # type: ignore[import-not-found, unused-ignore]
    from genai_prices import calc_price

    # Some prices depend on the length of a request, so the average request is priced, and not the sum of all.
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
