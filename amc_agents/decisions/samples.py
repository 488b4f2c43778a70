"""Sampled turns of a policy, and checks that LAC and PNLC share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from amc_agents.errors import ConfigurationError, DecisionError


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn written by the policy."""

    thought: str
    """The text before the action; may be empty."""
    action: str
    """The text after `Action:`, or tool calls as canonical JSON. Empty: the turn could not be parsed."""
    payload: Any = None
    """Any object of the caller, such as the message; returned with the choice."""
    log_likelihood: float | None = None
    """Log-likelihood of the whole text, end token included, at the sampling temperature; None: unknown."""
    text: str = ""
    """The whole text if several texts mean the same action; empty: the action is the text."""


class Actor(Protocol):
    """Samples turns of the policy at the state of the decision."""

    async def sample(self, k: int) -> Sequence[Sample]:
        """Return `k` independent samples in one round trip; a turn that cannot be parsed has an empty action."""
        ...


@runtime_checkable
class GreedyActor(Protocol):
    """An actor that also has a turn at temperature 0."""

    async def greedy(self) -> Sample:
        """Return the turn at temperature 0."""
        ...


def with_actions(drawn: Sequence[Sample], k: int) -> tuple[list[Sample], list[str]]:
    """Drop the samples without an action, and note how many were dropped or are missing.

    Args:
        drawn: the samples of the policy.
        k: number of requested samples.
    """
    notes = [] if len(drawn) == k else [f"{k} samples were requested and {len(drawn)} came"]
    samples = [sample for sample in drawn if sample.action.strip()]
    if len(samples) < len(drawn):
        notes.append(f"{len(drawn) - len(samples)} of {len(drawn)} samples name no action and were dropped")
    return samples, notes


def no_action(n: int) -> DecisionError:
    """Return the error for n samples without an action."""
    return DecisionError(
        f"none of {n} samples names an action: check the policy's prompt, its answers, and its limit of output tokens"
    )


def require_returns(returns: tuple[float, float]) -> None:
    """Raise `ConfigurationError` unless the returns of failure and success are finite and ascending."""
    low, high = returns
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigurationError(f"returns must be those of failure and success, in ascending order, got {returns}")
