"""Who descends from whom: lineages through the points of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.types import IntArray


@dataclass(frozen=True, eq=False)
class Genealogy:
    """The family tree of a population of N particles over P points.

    Segment p is the stretch before point p; segment P is the last one. A particle is named by segment and slot.
    """

    n_particles: int
    """N."""
    ancestors: Sequence[IntArray | None]
    """`[P]` of `[N]`: the slot that each slot continues, or None where nothing was resampled."""
    retired: Sequence[Sequence[int]] = ()
    """`[P]` slots put away at each point; empty where nothing ever was."""

    def lineage(self, slot: int, segment: int | None = None) -> tuple[int, ...]:
        """The slots that a particle's past went through, its own last.

        Args:
            slot: where the particle is.
            segment: in which segment; None: the last. A particle retired at point p is in segment p.

        Returns:
            `[segment + 1]` slots, one for each segment.
        """
        last = len(self.ancestors) if segment is None else segment
        slots = [slot]
        for ancestors in reversed(self.ancestors[:last]):
            slots.append(slots[-1] if ancestors is None else int(ancestors[slots[-1]]))
        return tuple(reversed(slots))

    @property
    def survivors(self) -> tuple[int, ...]:
        """`[P]` how many distinct particles were continued at each point."""
        return tuple(self.n_particles if a is None else len(np.unique(a)) for a in self.ancestors)

    @property
    def roots(self) -> frozenset[int]:
        """The first slots from which the final particles, retired ones included, descend."""
        live = {self.lineage(slot)[0] for slot in range(self.n_particles)}
        put_away = {self.lineage(slot, point)[0] for point, slots in enumerate(self.retired) for slot in slots}
        return frozenset(live | put_away)
