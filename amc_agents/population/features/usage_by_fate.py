"""What a run paid for: the policy's usage by the fate of the particles that spent it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from amc_agents.population.feature import Feature
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.run import Run
from amc_agents.runtime.metering import PolicyMeter, count_requests
from amc_agents.usage import Meter, Usage

FATES = ("winner", "survivors", "refilled", "pruned", "failed", "unfinished", "restored")
"""In this order: the winner's line, other finished particles, particles in the slots of retired ones, lines that
resampling removed, failed particles, particles that the end of the run cut off, and a run's past before a restart."""


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


class UsageByFate(Feature):
    """Counts the requests of each particle between two forks.

    Args:
        meter: counts the requests of all particles.
    """

    def __init__(self, meter: PolicyMeter) -> None:
        self._meter = meter
        self._segments: list[Segment] = []

    def on_enter(self, particle: Particle) -> None:
        """Count the requests of the particle, and thereby of the run."""
        segment = self._of(particle)
        if segment.meter is None:
            segment.meter = PolicyMeter(Meter(around=self._meter.meter), around=self._meter.around)
        count_requests(segment.meter)

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """Begin a segment for an offspring, and another for its parent."""
        before = self._of(parent)
        parent.states[UsageByFate], child.states[UsageByFate] = self._begin(before), self._begin(before)

    def on_resampled(self, system: ParticleSystem) -> None:
        """Note which particles took the slots of retired ones."""
        for slot in system.history[-1].retired:
            self._of(system.particles[slot]).refills = True

    def on_stopped(self) -> None:
        """Count the requests of steps that were cancelled."""
        for segment in self._segments:
            if segment.meter is not None:
                segment.meter.count_abandoned()

    async def on_end(self, system: ParticleSystem, run: Run, winner: Particle) -> Run:
        """Divide the policy's usage."""
        return replace(run, usage_by_fate=self.divided(winner, system.everyone, run.usage.get("policy", Usage())))

    def divided(self, winner: Particle, particles: Sequence[Particle], total: Usage) -> dict[str, Usage]:
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
        if UsageByFate not in particle.states:
            particle.states[UsageByFate] = self._begin(None)
        segment: Segment = particle.states[UsageByFate]
        return segment

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
        total.estimated - part.estimated,
    )
