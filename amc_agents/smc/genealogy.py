"""Lineages of particles through the weighing points of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.types import IntArray


@dataclass(frozen=True, eq=False)
class Genealogy:
    """The ancestry of N particles over P weighing points.

    Segment p comes before point p; segment P is the last. Segment and slot identify a particle. A resampling may change
    the number of particles, as in an adaptive run.
    """

    n_particles: int
    """N at the start."""
    ancestors: Sequence[IntArray | None]
    """`[P]` arrays `[N after point p]` with the slot that each slot continues, or None where nothing was resampled."""
    retired: Sequence[Sequence[int]] = ()
    """`[P]` slots retired at each point; empty if none ever was."""

    def lineage(self, slot: int, segment: int | None = None) -> tuple[int, ...]:
        """The slots of a particle and its ancestors, oldest first.

        Args:
            slot: the particle's slot.
            segment: its segment; None: the last. A particle retired at point p is in segment p.

        Returns:
            `[segment + 1]` slots, one per segment.
        """
        last = len(self.ancestors) if segment is None else segment
        slots = [slot]
        for ancestors in reversed(self.ancestors[:last]):
            slots.append(slots[-1] if ancestors is None else int(ancestors[slots[-1]]))
        return tuple(reversed(slots))

    @property
    def sizes(self) -> tuple[int, ...]:
        """`[P + 1]` number of particles in each segment."""
        sizes = [self.n_particles]
        for ancestors in self.ancestors:
            sizes.append(sizes[-1] if ancestors is None else len(ancestors))
        return tuple(sizes)

    @property
    def survivors(self) -> tuple[int, ...]:
        """`[P]` number of distinct ancestors at each point."""
        before = self.sizes[:-1]
        return tuple(
            size if ancestors is None else len(np.unique(ancestors))
            for size, ancestors in zip(before, self.ancestors, strict=True)
        )

    @property
    def roots(self) -> frozenset[int]:
        """The initial slots from which the final particles descend, retired particles included."""
        live = {self.lineage(slot)[0] for slot in range(self.sizes[-1])}
        retired = {self.lineage(slot, point)[0] for point, slots in enumerate(self.retired) for slot in slots}
        return frozenset(live | retired)
