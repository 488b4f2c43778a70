"""What a run paid for: the policy's usage by the fate of the particles that spent it."""

from __future__ import annotations

from collections.abc import Sequence

from amc_agents.population.particle import Particle
from amc_agents.population.segment import Segment
from amc_agents.runtime.metering import PolicyMeter
from amc_agents.usage import Meter, Usage

FATES = ("winner", "survivors", "refilled", "pruned", "failed", "unfinished", "restored")
"""In this order: the winner's line, other finished particles, particles in the slots of retired ones, lines that
resampling removed, failed particles, particles that the end of the run cut off, and a run's past before a restart."""


class Ledger:
    """All segments of a run."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def meter_of(self, particle: Particle, run: PolicyMeter) -> PolicyMeter:
        """Return the meter of a particle, which also counts for the run."""
        segment = self._of(particle)
        if segment.meter is None:
            segment.meter = PolicyMeter(Meter(around=run.meter), around=run.around)
        return segment.meter

    def count_abandoned(self) -> None:
        """Count the requests of steps that were cancelled."""
        for segment in self._segments:
            if segment.meter is not None:
                segment.meter.count_abandoned()

    def fork(self, parent: Particle) -> Segment:
        """Begin a segment for an offspring, and another for its parent."""
        before = self._of(parent)
        parent.segment = self._begin(before)
        return self._begin(before)

    def usage_by_fate(self, winner: Particle, particles: Sequence[Particle], total: Usage) -> dict[str, Usage]:
        """Divide the policy's usage by fate.

        Args:
            winner: the selected particle.
            particles: all particles at the end of the run.
            total: usage of the policy in the whole run.
        """
        fates = {id(segment): "pruned" for segment in self._segments}
        for fate in ("failed", "unfinished", "survivors"):
            for particle in particles:
                if _fate(particle) == fate:
                    fates |= {id(segment): fate for segment in self._of(particle).line()}
        for segment in self._segments:
            if any(before.refills for before in segment.line()):
                fates[id(segment)] = "refilled"
        fates |= {id(segment): "winner" for segment in self._of(winner).line()}
        spent: dict[str, Usage] = {}
        for segment in self._segments:
            fate = fates[id(segment)]
            spent[fate] = spent.get(fate, Usage()) + segment.usage
        spent["restored"] = _difference(total, sum(spent.values(), Usage()))
        return {fate: spent[fate] for fate in FATES if spent.get(fate, Usage()) != Usage()}

    def _of(self, particle: Particle) -> Segment:
        if particle.segment is None:
            particle.segment = self._begin(None)
        return particle.segment

    def _begin(self, parent: Segment | None) -> Segment:
        segment = Segment(parent)
        self._segments.append(segment)
        return segment


def _fate(particle: Particle) -> str:
    if particle.error is not None:
        return "failed"
    return "survivors" if particle.finished else "unfinished"


def _difference(total: Usage, part: Usage) -> Usage:
    return Usage(
        total.calls - part.calls,
        total.input_tokens - part.input_tokens,
        total.output_tokens - part.output_tokens,
        total.cached_tokens - part.cached_tokens,
        total.missing - part.missing,
    )
