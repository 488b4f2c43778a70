"""The usage of a particle between two forks."""

from __future__ import annotations

from collections.abc import Iterator

from amc_agents.runtime.metering import PolicyMeter
from amc_agents.usage import Usage


class Segment:
    """The usage of a particle between two forks.

    Args:
        parent: the segment before the last fork.
        refills: whether the particle took the slot of a particle that had finished.
    """

    def __init__(self, parent: Segment | None = None, *, refills: bool = False) -> None:
        self.parent = parent
        self.refills = refills
        self.meter: PolicyMeter | None = None
        """Counts its requests, from the first step on."""

    @property
    def usage(self) -> Usage:
        """The policy's usage."""
        return Usage() if self.meter is None else self.meter.meter.read().get("policy", Usage())

    def line(self) -> Iterator[Segment]:
        """Yield this segment and those before it."""
        segment: Segment | None = self
        while segment is not None:
            yield segment
            segment = segment.parent
