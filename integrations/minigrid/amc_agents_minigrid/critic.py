"""The critic string `babyai`: the small policy's verdict critic."""

from __future__ import annotations

from collections.abc import Mapping

from amc_agents.critics.verdict import critic as verdict
from amc_agents.errors import CriticSpecError
from amc_agents.types import Critic
from amc_agents_minigrid.tasks import MODEL


def from_spec(target: str, options: Mapping[str, str]) -> Critic:
    """Create the critic, with the options of `verdict:embedded:`. Raises `CriticSpecError`."""
    if target:
        raise CriticSpecError(f"the kind 'babyai' takes no target, got {target!r}: the same critic serves both worlds")
    return verdict.from_spec(f"embedded:{MODEL}", options)
