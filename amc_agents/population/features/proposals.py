"""Several proposals: particles of one population that are sampled with different settings of the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

Proposal = Mapping[str, Any]
"""Values in the `configurable` of a particle's agent, such as {"temperature": 0.9}."""

_RESERVED = ("thread_id", "critic", "checkpoint", "amc_", "__pregel")


def checked_proposals(proposals: Sequence[Proposal] | None, n_particles: int) -> tuple[Proposal, ...]:
    """Check proposals, and copy them.

    Args:
        proposals: what `amc` was given; None: the particles do not differ.
        n_particles: N, at the start of a run.

    Raises:
        ConfigurationError: there are none, or more than particles, or one has another form or a reserved key.
    """
    if proposals is None:
        return ()
    if not isinstance(proposals, Sequence) or not all(isinstance(proposal, Mapping) for proposal in proposals):
        raise ConfigurationError(
            f'proposals must be a list of mappings, such as [{{"temperature": 0.5}}, ...], got {quoted(proposals, 100)}'
        )
    if not 1 <= len(proposals) <= n_particles:
        raise ConfigurationError(
            f"expected 1 to n_particles={n_particles} proposals, one or more particles for each, got {len(proposals)}"
        )
    for key in (key for proposal in proposals for key in proposal):
        if not isinstance(key, str) or key.startswith(_RESERVED):
            raise ConfigurationError(
                f"the key {quoted(key)} of a proposal is reserved, or no string: use keys that the agent reads from "
                "its `configurable`"
            )
    return tuple(dict(proposal) for proposal in proposals)


def proposal_of(proposals: Sequence[Proposal], number: int) -> Proposal:
    """Return the proposal of the particles whose line began in slot `number`; empty if there is none."""
    return proposals[number % len(proposals)] if proposals else {}
