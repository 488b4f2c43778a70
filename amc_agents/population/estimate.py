"""Estimate what a call of a wrapped agent costs, from a plain run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amc_agents.prices import Cost, Rates, cost
from amc_agents.usage import Usage, total


@dataclass(frozen=True)
class Estimate:
    """Calls, tokens and dollars of a call with N particles. `str` shows them."""

    n_particles: int
    """N, of the call that is estimated."""
    plain: Mapping[str, Mapping[str, Usage]]
    """{role: {model: usage}} of the plain run: one particle, weighed by the critic."""
    is_race: bool = False
    """Whether the call is a race, which stops most of the particles before their ends."""

    @property
    def usage_by_model(self) -> dict[str, dict[str, Usage]]:
        """{role: {model: usage}} of the call, the form that `amc_agents.prices.cost` takes."""
        return {
            role: {model: _times(self.n_particles, usage) for model, usage in models.items()}
            for role, models in self.plain.items()
        }

    @property
    def usage(self) -> dict[str, Usage]:
        """Usage of the call by role."""
        return {role: total(models) for role, models in self.usage_by_model.items()}

    def cost(self, prices: Mapping[str, Rates] | None = None) -> Cost:
        """Convert the usage to dollars; see `amc_agents.prices.cost`."""
        return cost(self.usage_by_model, prices)

    def __str__(self) -> str:
        """Show a line for each role, and the cost."""
        lines = [
            f"{role}: {used.calls:,} calls, {used.input_tokens:,} tokens in, {used.output_tokens:,} out"
            for role, used in self.usage.items()
        ]
        whole = total(self.usage)
        bound = "at most about" if self.is_race else "about"
        spent = f"{bound} {whole.tokens:,} tokens and {self.cost()} with {self.n_particles} particles"
        return "\n".join([*lines, f"{spent}, by one plain run: tasks and particles differ in length"])


def _times(n: int, usage: Usage) -> Usage:
    return replace(
        usage,
        calls=n * usage.calls,
        input_tokens=n * usage.input_tokens,
        output_tokens=n * usage.output_tokens,
        cached_tokens=n * usage.cached_tokens,
        missing=n * usage.missing,
        estimated=n * usage.estimated,
    )
