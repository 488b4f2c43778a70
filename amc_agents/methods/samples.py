"""Turns as they were sampled: those that can be acted on, and what is said of the others."""

from __future__ import annotations

from collections.abc import Sequence

from amc_agents.errors import DecisionError
from amc_agents.methods.lac_types import Sample


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
