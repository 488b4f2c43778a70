"""Sampled turns of a policy, and the check that they name an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from amc_agents.errors import DecisionError


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn that the policy wrote."""

    thought: str
    """What it wrote before it acted; may be empty."""
    action: str
    """What it does: the text after `Action:`, or tool calls as canonical JSON. Empty: it could not be read."""
    payload: Any = None
    """The caller's own, such as the message; it comes back with the choice."""
    log_likelihood: float | None = None
    """Of the whole text, end token included, at the sampling temperature; None: not known."""
    text: str = ""
    """The whole text where several mean one action; empty: the action is the text."""


class Actor(Protocol):
    """Samples turns of the policy at the state that is to be decided."""

    async def sample(self, k: int) -> Sequence[Sample]:
        """`k` independent samples, in one round trip; what could not be read has an empty action."""
        ...


@runtime_checkable
class GreedyActor(Protocol):
    """An actor that can also say what the policy likes best."""

    async def greedy(self) -> Sample:
        """The turn at temperature 0."""
        ...


def with_actions(asked: Sequence[Sample], k: int) -> tuple[list[Sample], list[str]]:
    """The samples that name an action, and notes on those that do not, or did not come.

    Args:
        asked: what the policy gave.
        k: samples that it was asked for.
    """
    notes = [] if len(asked) == k else [f"{k} samples were asked for and {len(asked)} came"]
    samples = [one for one in asked if one.action.strip()]
    if len(samples) < len(asked):
        notes.append(f"{len(asked) - len(samples)} of {len(asked)} samples name no action and were dropped")
    return samples, notes


def no_action(n: int) -> DecisionError:
    """The error where none of n samples names an action."""
    return DecisionError(
        f"none of {n} samples names an action: look at the policy's prompt, at what it writes, and at the most tokens "
        "that it may write"
    )
